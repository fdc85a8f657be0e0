"""Two callers at once in one process: one result, no error a user would not understand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from millstream import Action, Code, MillstreamError

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
    return lake


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run all calls at one moment; what they gave, or the coded error they raised."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except MillstreamError as e:
            return e

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_two_threads_refresh_the_same_table(t: Lake) -> None:
    t.stream("sums", SUMS)
    for number in range(2):
        t.insert("t", f"'c', {number}")
        results = at_once(*[lambda: t.ms.refresh_stream_table("sums")] * 3)
        assert sorted(str(r.action) for r in results) == ["DIFFERENTIAL", "NO_DATA", "NO_DATA"]
        t.assert_exact("sums")


def test_threads_refresh_a_diamond_from_all_its_corners(t: Lake) -> None:
    t.stream("top", "SELECT k, v FROM t WHERE v > 0")
    t.stream("left_", "SELECT k, SUM(v) AS s FROM top GROUP BY k")
    t.stream("right_", "SELECT COUNT(*) AS n FROM top")
    t.stream("bottom", "SELECT l.k, l.s, r.n FROM left_ l CROSS JOIN right_ r")
    t.insert("t", "'d', 9", "'a', 5")
    results = at_once(
        *[lambda n=n: t.ms.refresh_stream_table(n) for n in ("bottom", "left_", "right_", "bottom", "top")]
    )
    assert not [r for r in results if isinstance(r, MillstreamError)]
    for name in t.queries:
        t.assert_exact(name)


def test_readers_never_see_half_a_refresh(t: Lake) -> None:
    """While FULL swaps the contents, every read gives all of one version."""
    t.stream("sums", SUMS)
    seen: set[Any] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(frozenset(t.rows("sums").items()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        allowed = {frozenset(t.rows("sums").items())}
        for number in range(3):
            t.sql(f"UPDATE t SET v = v + {number + 1}")
            t.ms.refresh_stream_table("sums", mode="FULL" if number % 2 == 0 else None)
            allowed.add(frozenset(t.rows("sums").items()))
    finally:
        stop.set()
        reader.join()
    assert seen <= allowed


def test_the_same_name_is_created_twice(t: Lake) -> None:
    results = at_once(*[lambda: t.ms.create_stream_table("sums", SUMS)] * 2)
    refused = [r for r in results if isinstance(r, MillstreamError)]
    assert [r.code for r in refused] == [Code.NAME_TAKEN]
    t.queries["sums"] = SUMS
    t.refresh("sums", Action.NO_DATA)
    assert len(t.stored) == 1


def test_altering_and_dropping_wait_for_a_refresh(t: Lake) -> None:
    t.stream("sums", SUMS)
    t.insert("t", "'x', 1")
    results = at_once(
        lambda: t.ms.refresh_stream_table("sums"),
        lambda: t.ms.alter_stream_table("sums", query="SELECT k, COUNT(*) AS s FROM t GROUP BY k"),
    )
    assert not [r for r in results if isinstance(r, MillstreamError)]
    t.queries["sums"] = "SELECT k, COUNT(*) AS s FROM t GROUP BY k"
    t.refresh("sums")
    t.insert("t", "'y', 1")
    refreshed, dropped = at_once(
        lambda: t.ms.refresh_stream_table("sums"), lambda: t.ms.drop_stream_table("sums", cascade=True)
    )
    assert dropped is None
    if isinstance(refreshed, MillstreamError):
        assert refreshed.code is Code.NOT_A_STREAM_TABLE
    assert t.stored == []
    assert t.ms.status() == []


def test_changes_while_a_refresh_runs_are_for_the_next(t: Lake) -> None:
    t.stream("sums", SUMS)

    def write() -> None:
        for number in range(3):
            t.ms.spark.sql(f"INSERT INTO t VALUES ('w', {number})")

    at_once(write, *[lambda: [t.ms.refresh_stream_table("sums") for _ in range(3)]] * 2)
    t.refresh("sums")
    assert t.rows("sums")[("w", 3)] == 1
