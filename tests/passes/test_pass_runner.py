"""Passes over several stream tables: one frontier, each table after what it reads, and one failure stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from millstream import Action, Code, MillstreamError
from millstream.naming import TableName
from millstream.passes.frontier import Frontiers, PassFrontier
from millstream.passes.pass_request import Outcome, PassRequest
from millstream.results import InitiatedBy, RefreshStatus

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark


@pytest.fixture
def diamond(lake: Lake) -> Lake:
    lake.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
    lake.table("u", "k STRING, w INT", "'a', 10")
    lake.stream("top", "SELECT k, v FROM t WHERE v > 0")
    lake.stream("left_", "SELECT k, SUM(v) AS s FROM top GROUP BY k")
    lake.stream("right_", "SELECT COUNT(*) AS n, SUM(v) AS total FROM top")
    lake.stream("bottom", "SELECT l.k, l.s, r.n, r.total FROM left_ l CROSS JOIN right_ r")
    lake.stream("other", "SELECT k, MAX(w) AS m FROM u GROUP BY k")
    return lake


def run(lake: Lake, *names: str, **options: Any) -> dict[str, Outcome]:
    """A pass over exactly these tables."""
    request = PassRequest([TableName.parse(n) for n in names], InitiatedBy.SCHEDULER, **options)
    return lake.ms._runtime.passes.run(request)


def assert_exact(lake: Lake) -> None:
    for name in lake.queries:
        lake.assert_exact(name)


def test_all_tables_are_refreshed_at_one_frontier(diamond: Lake) -> None:
    diamond.insert("t", "'c', 3", "'a', 4")
    diamond.insert("u", "'z', 5")
    outcomes = {o.name: o for o in diamond.ms.refresh_stream_tables()}
    assert {n: o.result.action for n, o in outcomes.items() if o.result} == dict.fromkeys(
        diamond.queries, Action.DIFFERENTIAL
    ) | {"top": Action.APPEND_ONLY}
    assert len({diamond.last(name).data_timestamp for name in diamond.queries}) == 1
    assert_exact(diamond)
    again = diamond.ms.refresh_stream_tables(["bottom", "other"])
    assert {o.name: o.result.action for o in again if o.result} == {"bottom": Action.NO_DATA, "other": Action.NO_DATA}


def test_tables_that_do_not_read_each_other_are_refreshed_side_by_side(diamond: Lake) -> None:
    """Both wait, inside their refreshes, until the other one has come as far."""
    meeting = threading.Barrier(2, timeout=60)
    refresher = diamond.ms._runtime.refresher
    refresh = refresher.refresh

    def met(table: Any, goal: Any) -> Any:
        if str(table.name) in ("left_", "right_"):
            meeting.wait()
        return refresh(table, goal)

    refresher.refresh = met  # type: ignore[method-assign]
    diamond.insert("t", "'c', 3")
    assert all(o.result for o in run(diamond, "top", "left_", "right_", "bottom").values())
    assert_exact(diamond)


def test_a_table_that_fails_stops_only_what_reads_it(diamond: Lake) -> None:
    diamond.stream("ratios", "SELECT k, 10 / v AS r FROM top")
    diamond.stream("sums", "SELECT SUM(r) AS s FROM ratios")
    diamond.insert("t", "'c', 3")
    diamond.ms.alter_stream_table("ratios", query="SELECT k, 10 / (v - 4) AS r FROM top")
    diamond.queries["ratios"] = "SELECT k, 10 / (v - 4) AS r FROM top"
    diamond.ms.refresh_stream_tables()
    diamond.insert("t", "'d', 4")
    diamond.insert("u", "'z', 7")
    outcomes = {o.name: o for o in diamond.ms.refresh_stream_tables()}
    assert outcomes["ratios"].error is not None
    assert outcomes["ratios"].error.code is Code.REFRESH_FAILED
    assert (outcomes["sums"].waits_for, outcomes["sums"].result) == ("ratios", None)
    for name in ("top", "left_", "right_", "bottom", "other"):
        assert outcomes[name].result is not None
        diamond.assert_exact(name)
    with pytest.raises(MillstreamError) as caught:
        diamond.ms.refresh_stream_table("sums")
    assert caught.value.code is Code.REFRESH_FAILED
    diamond.sql("DELETE FROM t WHERE v = 4")
    diamond.ms.refresh_stream_tables()
    assert_exact(diamond)


def test_a_suspended_table_is_waited_for(diamond: Lake) -> None:
    diamond.ms.alter_stream_table("left_", status="SUSPENDED")
    diamond.insert("t", "'c', 3")
    outcomes = {o.name: o for o in diamond.ms.refresh_stream_tables()}
    assert outcomes["bottom"].waits_for == "left_"
    assert "left_" not in outcomes
    assert outcomes["right_"].result is not None
    with pytest.raises(MillstreamError) as caught:
        diamond.ms.refresh_stream_tables(["other", "bottom"])
    assert caught.value.code is Code.SUSPENDED


def test_a_busy_table_is_skipped_by_the_scheduler(diamond: Lake) -> None:
    diamond.insert("t", "'c', 3")
    diamond.insert("u", "'z', 7")
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with diamond.ms._locks.acquire([diamond.ms._catalog.get(TableName.parse("left_")).id]):
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        outcomes = run(diamond, "top", "left_", "right_", "bottom", "other", is_waiting=False)
    finally:
        over.set()
        holder.join()
    assert outcomes["left_"].skipped
    assert outcomes["bottom"].waits_for == "left_"
    record = diamond.last("left_")
    assert (record.action, record.status, record.initiated_by) == (
        Action.SKIP,
        RefreshStatus.SKIPPED,
        InitiatedBy.SCHEDULER,
    )
    assert record.reason is not None
    assert record.reason.startswith("BUSY: ")
    for name in ("top", "right_", "other"):
        diamond.assert_exact(name)
    diamond.refresh("bottom", Action.DIFFERENTIAL)


def meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> list[PassFrontier]:
    """Do something after each of the next frontiers was taken; returns the frontiers."""
    taken: list[PassFrontier] = []
    pending = list(actions)
    take = Frontiers.take

    def taken_then(self: Frontiers, *arguments: Any, **options: Any) -> PassFrontier:
        frontier = take(self, *arguments, **options)
        taken.append(frontier)
        if pending:
            pending.pop(0)()
        return frontier

    monkeypatch.setattr(Frontiers, "take", taken_then)
    return taken


def test_a_pass_that_is_overtaken_takes_a_new_frontier(diamond: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has brought one corner of the diamond further: no corner stays behind it."""
    diamond.insert("t", "'c', 3")

    def overtake() -> None:
        diamond.insert("t", "'d', 5")
        diamond.ms.refresh_stream_table("left_")

    taken = meanwhile(diamond, monkeypatch, overtake)
    outcomes = run(diamond, "top", "left_", "right_", "bottom")
    assert len(taken) == 3  # of the pass, of the other refresh, and again of the pass
    assert outcomes["bottom"].result is not None
    assert outcomes["bottom"].result.frontier == taken[-1].versions
    assert_exact(diamond)


def test_a_pass_that_is_overtaken_again_and_again_locks_its_tables(
    diamond: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = iter(range(100, 200))

    def overtake() -> None:
        diamond.insert("t", f"'d', {next(counter)}")
        diamond.ms.refresh_stream_table("left_")

    diamond.insert("t", "'c', 3")
    nothing = [lambda: None]  # for the other refresh, which takes a frontier too
    meanwhile(diamond, monkeypatch, *([overtake, *nothing] * 5))
    run(diamond, "top", "left_", "right_", "bottom")
    assert_exact(diamond)


def test_a_definition_that_is_replaced_meanwhile_is_noticed(diamond: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    diamond.insert("t", "'c', 3")
    query = "SELECT k, v + 0 AS v FROM t WHERE v > 1"
    meanwhile(diamond, monkeypatch, lambda: diamond.ms.alter_stream_table("top", query=query))
    diamond.ms.refresh_stream_table("bottom")
    diamond.queries["top"] = query
    diamond.ms.refresh_stream_table("bottom")
    assert_exact(diamond)


def test_what_reads_a_table_outside_the_pass_stays_at_its_frontier(diamond: Lake) -> None:
    """A table on cron is refreshed at its times only: what is joined with it waits at its frontier."""
    diamond.stream("joined", "SELECT top.k, top.v, t.v AS newer FROM top JOIN t ON top.k = t.k")
    before = diamond.rows("joined")
    diamond.insert("t", "'c', 3")
    outcomes = run(diamond, "joined", "other")
    assert outcomes["joined"].result is not None
    assert outcomes["joined"].result.action is Action.NO_DATA
    assert diamond.rows("joined") == before
    diamond.assert_exact("joined")
    diamond.refresh("joined", Action.APPEND_ONLY)


def test_a_table_that_holds_others_back_joins_the_pass(diamond: Lake) -> None:
    diamond.insert("t", "'c', 3")
    run(diamond, "top", "left_")
    diamond.insert("t", "'d', 4")
    outcomes = run(diamond, "right_", "bottom")  # `left_` is further than `right_` was, and `top` than both will be
    assert outcomes["bottom"].result is not None
    assert_exact(diamond)
