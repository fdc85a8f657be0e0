"""What the policy learns from the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.catalog import Clock, new_table
from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable
from millstream.errors import Code, MillstreamError
from millstream.results import InitiatedBy
from millstream.service.daemon.lake_watch import LakeWatch


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(tmp_path: Path, clock: Clock) -> Iterator[Catalog]:
    with Catalog.open(tmp_path, clock) as opened:
        yield opened


def fail(catalog: Catalog, table: StreamTable, clock: Clock, *codes: Code) -> None:
    for code in codes:
        error = MillstreamError(code, "it failed")
        catalog.record_failure(
            table.id,
            error,
            initiated_by=InitiatedBy.SCHEDULER,
            started_at=clock(),
            max_consecutive_errors=None,
        )


def test_a_table_that_may_have_ended_the_jvm_waits_longer_each_time(catalog: Catalog, clock: Clock) -> None:
    crashing, other = (catalog.create_stream_table(new_table(name)) for name in ("crashing", "other"))
    fail(catalog, crashing, clock, Code.JVM_LOST, Code.REFRESH_FAILED, Code.JVM_LOST, Code.JVM_LOST, Code.JVM_LOST)
    fail(catalog, other, clock, Code.JVM_LOST, Code.REFRESH_FAILED)
    watch = LakeWatch(catalog, slots=2)
    view = watch.view(clock(), watch.pulse(), busy_slots=0, is_enabled=True)
    backoff = view.tables["crashing"].backoff
    assert backoff.attempts == 3
    assert backoff.wait_seconds(clock()) == 4.0
    assert view.tables["other"].backoff.attempts == 0
