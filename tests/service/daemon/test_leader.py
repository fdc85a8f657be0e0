"""The leadership of a lake: one process at a time, released in every case; errors of the work stay what they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream.catalog import Catalog
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import Locks, locks_for
from millstream.service.daemon.leader import LEADER_KEY, leading


def now() -> datetime:
    return datetime.now(UTC)


def fail(catalog: Catalog, code: Code) -> None:
    assert catalog.leadership().leader is not None
    raise MillstreamError(code, "the work failed")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def locks(catalog: Catalog, tmp_path: Path) -> Locks:
    return locks_for(catalog, tmp_path)


@pytest.mark.parametrize("code", [Code.LOCK_TIMEOUT, Code.LEADERSHIP_LOST])
def test_an_error_of_the_work_ends_the_leadership(catalog: Catalog, locks: Locks, code: Code) -> None:
    stop = threading.Event()
    with pytest.raises(MillstreamError) as caught, leading(catalog, locks, stop, now, "1", stop.set):
        fail(catalog, code)
    assert caught.value.code is code
    assert not stop.is_set()  # it never stood by
    assert catalog.leadership().leader is None
    assert catalog.epoch is None
    with locks.acquire([LEADER_KEY], timeout=0):
        pass


def test_a_stand_by_that_is_stopped_never_leads(catalog: Catalog, locks: Locks, tmp_path: Path) -> None:
    stop = threading.Event()
    other = locks_for(catalog, tmp_path)
    with other.acquire([LEADER_KEY]), leading(catalog, locks, stop, now, "1", stop.set) as epoch:
        assert epoch is None
    assert catalog.leadership().epoch == 0
