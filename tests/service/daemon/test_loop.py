"""The daemon on a real lake: tables that keep themselves fresh, failures that stop nothing else, one leader."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.daemon import running, until
from kits.lake import Lake, open_lake
from millstream import Action, Code, MillstreamError, Status
from millstream.catalog.leadership import Leader
from millstream.results import InitiatedBy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", scheduler_interval_ms=100, max_consecutive_errors=2) as opened:
        opened.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        yield opened


def test_tables_keep_themselves_fresh(lake: Lake) -> None:
    lake.ms.create_stream_table("top", "SELECT k, v FROM t WHERE v > 0", schedule=None)
    lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM top GROUP BY k", schedule="1s")
    with running(lake.ms) as daemon:
        for number in (5, 6):
            lake.insert("t", f"'c', {number}")
            until(lambda: lake.rows("sums")[("c", 5 if number == 5 else 11)])  # noqa: B023 - called in this round only
        until(lambda: lake.last("sums").action is Action.NO_DATA)
    assert not daemon.errors
    record = next(r for r in lake.ms.refresh_history("sums") if r.action is Action.DIFFERENTIAL)
    assert record.initiated_by is InitiatedBy.SCHEDULER
    assert record.freshness_deadline is not None
    for name in ("top", "sums"):
        assert lake.ms.verify(name).ok
    names = [str(e.event) for e in lake.ms._catalog.events(limit=100)]
    assert {"leader_elected", "refresh_completed"} <= set(names)
    assert lake.ms._catalog.leadership().leader is None  # it was released


def test_a_sick_table_delays_no_other_and_is_resumed(lake: Lake) -> None:
    lake.ms.create_stream_table("ratios", "SELECT k, 10 DIV v AS r FROM t", schedule="1s")
    lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s")
    with running(lake.ms) as daemon:
        lake.insert("t", "'z', 0")
        until(lambda: status(lake, "ratios") is Status.ERROR)
        until(lambda: lake.rows("sums")[("z", 0)])
        failures = [r for r in lake.ms.refresh_history("ratios", 100) if r.error_message]
        assert len(failures) == 2
        lake.sql("DELETE FROM t WHERE v = 0")
        until(lambda: not lake.rows("sums")[("z", 0)])
        assert status(lake, "ratios") is Status.ERROR  # nothing refreshes it by itself
        lake.ms.alter_stream_table("ratios", status="ACTIVE")
        until(lambda: lake.ms.verify("ratios").ok and lake.last("ratios").action is not None)
    assert not daemon.errors
    names = [str(e.event) for e in lake.ms._catalog.events(limit=200)]
    assert {"refresh_failed", "auto_suspended"} <= set(names)


def test_paused_and_resumed(lake: Lake) -> None:
    lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s")
    lake.ms.pause()
    with running(lake.ms) as daemon:
        until(lambda: daemon.activities)
        lake.insert("t", "'c', 5")
        seen = len(daemon.activities)
        until(lambda: len(daemon.activities) > seen + 15)
        assert all(a.is_paused and not a.running for a in daemon.activities)
        assert not lake.rows("sums")[("c", 5)]
        lake.ms.refresh_stream_table("sums")  # an explicit refresh works
        assert lake.rows("sums")[("c", 5)]
        lake.insert("t", "'d', 7")
        lake.ms.resume()
        until(lambda: lake.rows("sums")[("d", 7)])
    assert not daemon.errors


def test_a_definition_that_is_new_is_refreshed_too(lake: Lake) -> None:
    with running(lake.ms) as daemon:
        until(lambda: daemon.activities)
        lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s", initialize=False)
        until(lambda: lake.rows("sums") if status(lake, "sums") is Status.ACTIVE else None)
        lake.ms.drop_stream_table("sums")
        seen = len(daemon.activities)
        until(lambda: len(daemon.activities) > seen + 2)
    assert not daemon.errors


def test_a_stand_by_takes_over(lake: Lake, tmp_path: Path) -> None:
    lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s")
    with open_lake(tmp_path / "lake") as second, running(lake.ms) as first:
        until(lambda: first.activities)
        with running(second.ms) as other:
            until(other.is_standby.is_set)
            assert not other.activities
            first.end()
            until(lambda: other.activities)
            assert [a.epoch for a in (first.activities[0], other.activities[0])] == [1, 2]
            lake.insert("t", "'c', 5")
            until(lambda: lake.rows("sums")[("c", 5)])
        assert not other.errors


def test_a_leader_that_was_replaced_cannot_write(lake: Lake) -> None:
    lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s")
    with running(lake.ms, fails=True) as daemon:
        until(lambda: daemon.activities)
        usurper = Leader(id="other", host="elsewhere", pid=1, version="0", since=datetime.now(UTC))
        lake.ms._catalog.take_leadership(usurper)
        until(lambda: daemon.errors)
    [error] = daemon.errors
    assert isinstance(error, MillstreamError)
    assert error.code is Code.LEADERSHIP_LOST


def status(lake: Lake, name: str) -> Status:
    return next(s.status for s in lake.ms.status() if s.name == name)
