"""Tables that cannot be served: retried by themselves, counted, and in nobody's way."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from kits.simulated_machine import START
from millstream.scheduler.backoff import Backoff
from millstream.scheduler.dag import Dag
from millstream.scheduler.failures import FailureClass
from millstream.scheduler.lake_view import LakeView, TableView
from millstream.scheduler.policy import decide
from millstream.scheduler.schedule import Schedule
from millstream.scheduler.serving_retries import SERVED, after_serving_failure


def view(seconds: float, retry_in: float | None, schedule: str = "1h") -> LakeView:
    """A served table and its dependent, refreshed at START; serving is retried at some time."""
    now = START + timedelta(seconds=seconds)
    retry_at = None if retry_in is None else START + timedelta(seconds=retry_in)
    tables = {
        name: TableView(name=name, schedule=Schedule.parse(schedule), data_timestamp=START, refreshed_at=START)
        for name in ("served", "above")
    }
    tables["served"] = replace(tables["served"], serving=Backoff(1, retry_at) if retry_at else Backoff())
    dag = Dag.build({"served": ["t"], "above": ["served"]})
    return LakeView(now=now, tables=tables, dag=dag, slots=2, free_slots=2)


def test_serving_is_retried_before_a_long_schedule() -> None:
    early = decide(view(1, retry_in=4))
    assert not early.passes
    assert early.wake_at == START + timedelta(seconds=4)
    [plan] = decide(view(4, retry_in=4)).passes
    assert plan.tables == ("served",)
    assert not decide(view(4, retry_in=None)).passes


def test_a_table_that_cannot_be_served_keeps_nothing_waiting() -> None:
    decision = decide(view(10, retry_in=60, schedule="10s"))
    assert not decision.waiting
    [plan] = decision.passes
    assert set(plan.tables) == {"served", "above"}


def test_failures_count_across_refreshes() -> None:
    unserved = SERVED
    for errors in (1, 2, 3):
        unserved = after_serving_failure(unserved, FailureClass.DATA, START, 0.5)
        assert unserved.errors == errors
    assert not unserved.may_retry(START)
    assert unserved.may_retry(START + timedelta(seconds=60))


def test_a_transient_failure_counts_after_five_retries() -> None:
    unserved, counted = SERVED, []
    for _ in range(12):
        unserved = after_serving_failure(unserved, FailureClass.TRANSIENT, START, 0.5)
        counted.append(unserved.errors)
    assert counted == [0] * 5 + [1] * 6 + [2]


def test_a_cancelled_attempt_never_counts() -> None:
    unserved = SERVED
    for _ in range(12):
        unserved = after_serving_failure(unserved, FailureClass.STOPPED, START, 0.5)
    assert unserved.errors == 0
