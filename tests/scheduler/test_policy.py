"""Decisions, one at a time: what is due, what is in a pass, what waits, when to ask again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream.results import Status
from millstream.scheduler.backoff import Backoff
from millstream.scheduler.dag import Dag
from millstream.scheduler.lake_view import LakeView, TableView, expected_seconds
from millstream.scheduler.policy import MAX_SLEEP_SECONDS, Decision, MissedDeadline, after_look, decide
from millstream.scheduler.schedule import Schedule
from millstream.scheduler.waits import Wait, WaitReason

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def after(seconds: float) -> datetime:
    return ago(-seconds)


def table(schedule: str | None = "60s", *, age: float | None = 0.0, **facts: Any) -> dict[str, Any]:
    """A table whose contents are `age` seconds old; None if it has none."""
    return {
        "schedule": None if schedule is None else Schedule.parse(schedule),
        "data_timestamp": None if age is None else ago(age),
        "is_populated": age is not None,
        **facts,
    }


def lake(
    sources: dict[str, list[str]],
    *,
    slots: int = 4,
    free: int | None = None,
    enabled: bool = True,
    **tables: dict[str, Any],
) -> LakeView:
    views = {name: TableView(name=name, **{**table(), **tables.get(name, {})}) for name in sources}
    return LakeView(
        now=NOW,
        tables=views,
        dag=Dag.build(sources),
        slots=slots,
        free_slots=slots if free is None else free,
        is_enabled=enabled,
    )


def levels(decision: Decision) -> list[tuple[tuple[str, ...], ...]]:
    return [plan.levels for plan in decision.passes]


ONE = {"a": ["x"]}


# When a table is due


def test_nothing_is_due_and_nothing_happens_until_something_is() -> None:
    decision = decide(lake(ONE, a=table("60s", age=10, expected_seconds=4)))
    assert (decision.passes, decision.queued, decision.missed, dict(decision.waiting)) == ((), (), (), {})
    # the deadline is in 50 s; 6 s before it the refresh should have ended, which takes 4 s
    assert decision.wake_at == after(40)


def test_a_refresh_starts_early_enough_to_end_in_time() -> None:
    early, late = (lake(ONE, a=table("60s", age=age, expected_seconds=4)) for age in (49.9, 50))
    assert decide(early).passes == ()
    [plan] = decide(late).passes
    assert (plan.levels, plan.due, plan.deadlines) == ((("a",),), {"a"}, {"a": after(10)})


def test_what_is_refreshed_before_it_counts_too() -> None:
    chain = {"a": ["x"], "b": ["a"], "c": ["b"]}
    facts = {name: table("60s", age=42, expected_seconds=4) for name in chain}
    assert levels(decide(lake(chain, **facts))) == [(("a",), ("b",), ("c",))]
    facts = {name: table("60s", age=41.9, expected_seconds=4) for name in chain}
    assert decide(lake(chain, **facts)).passes == ()


@pytest.mark.parametrize("source", [table(None, expected_seconds=4), table("5s", age=0, expected_seconds=0.5)])
def test_what_is_refreshed_with_it_counts_whatever_its_own_schedule(source: dict[str, Any]) -> None:
    at = 54 - 4 - source["expected_seconds"]
    pair = {"a": ["x"], "b": ["a"]}
    assert levels(decide(lake(pair, a=source, b=table("60s", age=at, expected_seconds=4)))) == [(("a",), ("b",))]
    assert decide(lake(pair, a=source, b=table("60s", age=at - 0.1, expected_seconds=4))).passes == ()


def test_deadlines_that_crowd_make_refreshes_start_earlier() -> None:
    apart = {f"t{i}": [f"x{i}"] for i in range(5)}
    facts = {name: table("60s", age=44, expected_seconds=2) for name in apart}
    assert decide(lake(apart, slots=5, **facts)).passes == ()
    [plan] = decide(lake(apart, slots=1, **facts)).passes
    assert plan.tables == ("t0",)


def test_crowds_and_wrong_expectations_do_not_refresh_all_the_time() -> None:
    apart = {f"t{i}": [f"x{i}"] for i in range(50)}
    facts = {name: table("60s", age=41, expected_seconds=10) for name in apart}
    assert decide(lake(apart, slots=1, **facts)).passes == ()
    facts = {name: table("60s", age=42, expected_seconds=10) for name in apart}
    assert decide(lake(apart, slots=1, **facts)).passes


def test_a_table_that_takes_too_long_rests_for_as_long() -> None:
    slow = table("10s", age=20, expected_seconds=15, ended_at=ago(5))
    decision = decide(lake(ONE, a=slow))
    assert (decision.passes, decision.wake_at) == ((), after(10))
    assert decide(lake(ONE, a=slow | {"ended_at": ago(15)})).passes
    # an expectation may be wrong: a few periods are enough
    assert decide(lake(ONE, a=table("1s", age=4, expected_seconds=3600, ended_at=ago(4)))).passes
    # a retry after a failure follows the backoff alone
    assert decide(lake(ONE, a=slow | {"backoff": Backoff(1, ago(1))})).passes


def test_a_table_without_contents_is_due_at_once() -> None:
    for schedule in ("1h", "@daily"):
        [plan] = decide(lake(ONE, a=table(schedule, age=None))).passes
        assert plan.deadlines == {"a": None}
    assert decide(lake(ONE, a=table(None, age=None))).passes == ()
    sources = {"a": ["x"], "new": ["y"]}
    queue = lake(sources, slots=1, a=table("60s", age=60), new=table("1h", age=None, created_at=ago(1)))
    assert levels(decide(queue)) == [(("new",),)]  # it has waited for longer than the other is late


def test_cron_says_when_and_has_no_deadline() -> None:
    before = decide(lake(ONE, a=table("30 12 * * *", age=3600, expected_seconds=600)))
    assert (before.passes, before.wake_at) == ((), after(MAX_SLEEP_SECONDS))
    [plan] = decide(lake(ONE, a=table("0 12 * * *", age=3600))).passes
    assert plan.deadlines == {"a": None}
    [plan] = decide(lake(ONE, a=table("0 * * * *", age=86400))).passes  # 24 times were missed
    assert decide(lake(ONE, a=table("0 * * * *", age=0))).passes == ()


def test_cron_faster_than_its_refreshes_rests_in_between() -> None:
    busy = table("* * * * *", age=70, expected_seconds=65, ended_at=ago(5))
    assert decide(lake(ONE, a=busy)).passes == ()
    assert decide(lake(ONE, a=busy | {"ended_at": ago(65)})).passes
    # a time that came while somebody else refreshed it is not lost
    daily = table("59 11 * * *", age=70, expected_seconds=1, ended_at=ago(1))
    assert decide(lake(ONE, a=daily)).passes


@pytest.mark.parametrize("schedule", ["1h", "@daily"])
def test_contents_from_the_future_do_not_stall_a_table(schedule: str) -> None:
    assert decide(lake(ONE, a=table(schedule, age=-86400))).passes
    assert decide(lake(ONE, a=table(schedule, age=-86400, ended_at=after(86400)))).passes


def test_a_table_that_cron_keeps_back_is_not_refreshed_all_the_time() -> None:
    kept = {"c": ["x"], "r": ["c"]}
    view = lake(kept, c=table("@daily", age=3600), r=table("60s", age=3600, refreshed_at=ago(5)))
    decision = decide(view)
    assert (decision.passes, decision.wake_at) == ((), after(49))


# What is in a pass


DIAMOND = {"left": ["x"], "right": ["x"], "top": ["left", "right"]}


def test_a_pass_includes_what_its_tables_read() -> None:
    facts = {"left": table("1h", age=0), "right": table(None, age=50), "top": table("60s", age=60)}
    [plan] = decide(lake(DIAMOND, **facts)).passes
    assert plan.levels == (("right", "left"), ("top",)) or plan.levels == (("left", "right"), ("top",))
    assert plan.due == {"top"}
    assert plan.deadlines == {"left": after(3600), "right": None, "top": NOW}


def test_a_table_is_refreshed_without_its_dependents() -> None:
    assert levels(decide(lake(DIAMOND, left=table("60s", age=60), top=table("1h")))) == [(("left",),)]


def test_an_upstream_table_on_cron_is_not_refreshed_with_its_dependents() -> None:
    facts = {"left": table("@daily", age=60), "top": table("60s", age=60)}
    assert levels(decide(lake(DIAMOND, **facts))) == [(("right",), ("top",))]
    facts["left"] = table("@hourly", age=3601)
    assert levels(decide(lake(DIAMOND, **facts))) == [(("left", "right"), ("top",))]
    # and what is above it is left alone
    chain = {"a": ["x"], "c": ["a"], "r": ["c"]}
    assert levels(decide(lake(chain, c=table("@daily", age=60), r=table("60s", age=60)))) == [(("r",),)]


def test_tables_that_share_a_base_table_are_in_one_pass_and_others_are_not() -> None:
    sources = {"a": ["x"], "b": ["x", "y"], "c": ["y"], "d": ["z"]}
    facts = {name: table("60s", age=60) for name in sources}
    assert levels(decide(lake(sources, **facts))) == [(("a", "b", "c"),), (("d",),)]
    facts["b"] = table("60s", age=0)
    assert levels(decide(lake(sources, **facts))) == [(("a",),), (("c",),), (("d",),)]


def test_what_is_almost_due_joins() -> None:
    sources = {"a": ["x"], "b": ["x"]}
    assert levels(decide(lake(sources, a=table("60s", age=54), b=table("60s", age=48)))) == [(("a", "b"),)]
    assert levels(decide(lake(sources, a=table("60s", age=54), b=table("60s", age=47)))) == [(("a",),)]
    assert decide(lake(sources, a=table("60s", age=48), b=table("60s", age=48))).passes == ()


def test_a_table_that_becomes_due_while_its_source_is_refreshed_joins() -> None:
    sources = {"slow": ["x"], "above": ["slow"], "hourly": ["slow"], "later": ["slow"]}
    facts = {
        "slow": table("60s", age=60, expected_seconds=30),
        "above": table("10m", age=490),  # due in 20 s, when its source is not done
        "hourly": table("0 0 12 * * *", age=60),  # due now
        "later": table("10m", age=400),
    }
    assert levels(decide(lake(sources, **facts))) == [(("slow",), ("hourly", "above"))]
    facts["hourly"] = table("10 0 12 * * *", age=60)  # cron says when: not before
    [plan] = decide(lake(sources, **facts)).passes
    assert (plan.levels, plan.due) == ((("slow",), ("above",)), {"slow", "above"})


def test_the_earliest_deadline_is_first_in_a_level_and_among_passes() -> None:
    sources = {"a": ["x"], "b": ["x"], "c": ["x"], "d": ["y"]}
    facts = {"a": table("60s", age=60), "b": table("60s", age=70), "c": table("1h", age=3600), "d": table(age=65)}
    decision = decide(lake(sources, **facts))
    assert levels(decision) == [(("b", "a", "c"),), (("d",),)]
    facts["d"] = table(age=75)
    assert levels(decide(lake(sources, **facts))) == [(("d",),), (("b", "a", "c"),)]


def test_what_an_urgent_table_reads_is_urgent() -> None:
    sources = {"a": ["x"], "z": ["x"], "above_z": ["z"]}
    facts = {"a": table("60s", age=61), "z": table("1h", age=0), "above_z": table("60s", age=70)}
    assert levels(decide(lake(sources, **facts))) == [(("z", "a"), ("above_z",))]


def test_a_pass_goes_on_without_a_table_that_is_running_and_its_dependents() -> None:
    sources = {"slow": ["x"], "above": ["slow"], "other": ["x"]}
    facts = {name: table("60s", age=60) for name in sources}
    facts["slow"]["running_since"] = ago(5)
    decision = decide(lake(sources, **facts))
    assert levels(decision) == [(("other",),)]
    assert decision.waiting == {"above": Wait("slow", WaitReason.RUNNING)}
    facts["above"] = table("60s", age=10)  # not due: it waits for nothing
    assert decide(lake(sources, **facts)).waiting == {}


# Slots


def test_passes_start_as_long_as_there_are_slots() -> None:
    sources = {f"t{i}": [f"x{i}"] for i in range(4)}
    facts = {name: table("60s", age=60 + i) for i, name in enumerate(sources)}
    decision = decide(lake(sources, slots=2, **facts))
    assert levels(decision) == [(("t3",),), (("t2",),)]
    assert [plan.tables for plan in decision.queued] == [("t1",), ("t0",)]
    full = decide(lake(sources, slots=2, free=0, **facts))
    assert (full.passes, full.wake_at) == ((), after(MAX_SLEEP_SECONDS))


def test_a_pass_that_is_wider_than_the_slots_starts_all_the_same() -> None:
    sources = {"a": ["x"], "b": ["x"], "c": ["x"], "d": ["y"]}
    facts = {name: table("60s", age=61) for name in ("a", "b", "c")} | {"d": table("60s", age=60)}
    decision = decide(lake(sources, slots=2, **facts))
    assert levels(decision) == [(("a", "b", "c"),)]
    assert [plan.tables for plan in decision.queued] == [("d",)]


def test_a_disabled_scheduler_starts_nothing() -> None:
    decision = decide(lake(ONE, enabled=False, a=table("60s", age=600)))
    assert (decision.passes, decision.queued, decision.missed) == ((), (), ())
    assert decision.wake_at == after(MAX_SLEEP_SECONDS)


# Failures


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"status": Status.ERROR}, WaitReason.ERROR),
        ({"status": Status.SUSPENDED}, WaitReason.SUSPENDED),
        ({"backoff": Backoff(2, after(2))}, WaitReason.RETRY),
    ],
)
def test_dependents_of_a_failed_table_wait_and_say_for_whom(facts: dict[str, Any], reason: WaitReason) -> None:
    sources = {"bad": ["x"], "next": ["bad"], "last": ["next", "fine"], "fine": ["x"], "other": ["y"]}
    tables = {name: table("60s", age=60) for name in sources}
    tables["bad"] |= facts
    decision = decide(lake(sources, **tables))
    assert levels(decision) == [(("fine",),), (("other",),)]
    assert decision.waiting == {"next": Wait("bad", reason), "last": Wait("bad", reason)}


def test_a_retry_wakes_the_loop_and_comes_with_its_dependents() -> None:
    sources = {"bad": ["x"], "next": ["bad"]}
    tables = {name: table("60s", age=60) for name in sources}
    waiting = lake(sources, **tables | {"bad": tables["bad"] | {"backoff": Backoff(2, after(2))}})
    assert decide(waiting).wake_at == after(2)
    retried = lake(sources, **tables | {"bad": tables["bad"] | {"backoff": Backoff(2, NOW)}})
    assert levels(decide(retried)) == [(("bad",), ("next",))]
    close = lake(sources, **tables | {"bad": tables["bad"] | {"backoff": Backoff(2, after(0.0001))}})
    assert NOW < decide(close).wake_at < after(0.1)


def test_a_table_in_error_is_worse_than_a_running_one() -> None:
    sources = {"a": ["x"], "b": ["y"], "r": ["a", "b"]}
    facts = {"a": table(age=60, running_since=ago(1)), "b": table(age=60, status=Status.ERROR), "r": table(age=60)}
    assert decide(lake(sources, **facts)).waiting == {"r": Wait("b", WaitReason.ERROR)}


# Deadlines that cannot be kept


def test_a_deadline_that_cannot_be_kept_is_reported() -> None:
    assert decide(lake(ONE, a=table("60s", age=50, expected_seconds=10))).missed == ()
    late = decide(lake(ONE, a=table("60s", age=55, expected_seconds=10)))
    assert late.missed == (MissedDeadline("a", after(5), after(10)),)


def test_a_queue_counts() -> None:
    sources = {f"t{i}": [f"x{i}"] for i in range(3)}
    facts = {name: table("60s", age=50 - i, expected_seconds=5) for i, name in enumerate(sources)}
    facts["t2"]["running_since"] = ago(1)
    assert decide(lake(sources, slots=2, **facts)).missed == ()
    missed = decide(lake(sources, slots=1, free=0, **facts)).missed  # 4 s of t2, then 5 of each
    assert missed == (MissedDeadline("t1", after(11), after(14)),)


def test_a_refresh_ends_after_what_it_reads() -> None:
    facts = {name: table("60s", age=52, expected_seconds=5) for name in ("a", "b")}
    decision = decide(lake({"a": ["x"], "b": ["a"]}, **facts))
    assert decision.missed == (MissedDeadline("b", after(8), after(10)),)


def test_a_running_refresh_and_what_waits_for_it_can_be_late() -> None:
    sources = {"slow": ["x"], "above": ["slow"]}
    facts = {"slow": table(age=100, running_since=ago(70), expected_seconds=5), "above": table(age=100)}
    assert [m.table for m in decide(lake(sources, **facts)).missed] == ["above", "slow"]


# The view


def test_a_view_must_fit_its_graph() -> None:
    view = lake(ONE)
    with pytest.raises(ValueError, match="differ"):
        replace(view, tables={})
    with pytest.raises(ValueError, match="slots"):
        replace(view, slots=0)


def test_expected_durations_are_high_but_no_outliers() -> None:
    assert expected_seconds([]) == 0
    assert expected_seconds([3.0]) == 3
    assert expected_seconds([1.0, 9.0, 2.0]) == 9
    assert expected_seconds([1.0] * 10 + [60.0] + [2.0] * 9) == 2
    assert expected_seconds([60.0] * 30 + [1.0] * 20) == 1  # what was long ago does not count


# Looks


def test_tables_that_are_due_soon_are_looked_at_with_those_that_are_due() -> None:
    view = lake(
        {"due": ["t"], "soon": ["t"], "fresh": ["t"], "read": ["t"], "reader": ["read"], "daily": ["t"], "ill": ["t"]},
        due=table("60s", age=59),
        soon=table("60s", age=30),
        fresh=table("60s", age=20),
        read=table(None, age=1),
        reader=table("60s", age=40),
        daily=table("@daily", age=3_600),
        ill=table("60s", age=59, status=Status.ERROR),
    )
    decision = decide(view)
    assert levels(decision) == [(("due",),)]
    assert {name: decision.early[name] for name in ("soon", "reader")} == {"soon": after(30), "reader": after(20)}
    assert list(decision.early).index("read") < list(decision.early).index("reader")
    assert decision.looked_at.keys() == {"due", "soon", "read", "reader"}
    assert not decide(replace(view, is_enabled=False)).looked_at


def test_nothing_is_looked_at_while_nothing_is_due() -> None:
    assert not decide(lake({"soon": ["t"]}, soon=table("60s", age=40))).looked_at


def test_what_is_left_after_a_look() -> None:
    sources = {"a": ["t"], "b": ["a"], "c": ["u"], "d": ["v"]}
    view = lake(sources, slots=1, **{name: table("10s", age=11 - n) for n, name in enumerate(sources)})
    decision = decide(view)
    assert len(decision.queued) == 2
    at = after(0.01)
    left = after_look(decision, view, {"a", "c"}, at)
    assert [p.tables for p in (*left.passes, *left.queued)] == [("b",), ("d",)]
    assert [p.due for p in left.passes] == [{"b"}]
    everything = after_look(decision, view, set(sources), at)
    assert not everything.passes
    assert not everything.queued
    assert everything.wake_at == at + timedelta(seconds=9)  # a tenth of the period before the deadline
    assert after_look(decision, view, set(), at) is decision


def test_a_deadline_that_a_look_has_kept_is_not_missed() -> None:
    view = lake({"a": ["t"], "b": ["t"]}, a=table("10s", age=9.5, expected_seconds=2.0), b=table("10s", age=11))
    assert {m.table for m in decide(view).missed} == {"a", "b"}
    left = after_look(decide(view), view, {"a", "b"}, NOW)
    assert {m.table for m in left.missed} == {"b"}  # which was too late already


# Cycles

RING = {"a": ["x", "b"], "b": ["a"], "far": ["b"]}


def test_a_member_that_is_due_makes_the_cycle_due() -> None:
    facts = {"a": table("60s", age=59), "b": table("1h", age=59), "far": table("1h", age=59)}
    [plan] = decide(lake(RING, **facts)).passes
    assert (plan.levels, plan.due) == ((("a", "b"),), {"a"})
    assert plan.deadlines == {"a": after(1), "b": after(3541)}


def test_a_cycle_is_refreshed_with_what_reads_it_even_if_a_member_is_on_cron() -> None:
    facts = {"a": table("1h", age=59), "b": table("@daily", age=59), "far": table("60s", age=59)}
    [plan] = decide(lake(RING, **facts)).passes
    assert (plan.levels, plan.due) == ((("b", "a"), ("far",)), {"far"})
    only_cron = {"a": table("@daily", age=59), "b": table("@daily", age=59), "far": table("60s", age=59)}
    [plan] = decide(lake(RING, **only_cron)).passes
    assert plan.levels == (("far",),)


@pytest.mark.parametrize("facts", [{"status": Status.SUSPENDED}, {"status": Status.ERROR}, {"running_since": NOW}])
def test_all_members_wait_for_one(facts: dict[str, Any]) -> None:
    due = {name: table("60s", age=59) for name in RING}
    decision = decide(lake(RING, **{**due, "b": table("60s", age=59, **facts)}))
    assert decision.passes == ()
    assert {name: wait.table for name, wait in decision.waiting.items()} == {"a": "b", "far": "b"}
