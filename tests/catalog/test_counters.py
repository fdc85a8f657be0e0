"""Totals of refreshes: whatever happens to the history, the counters equal what a query over all of it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.catalog import Clock, new_definition, new_table, no_data, outcome, start
from kits.catalog_server import new_schema_url
from kits.counted import assert_equal
from millstream.catalog import Catalog, Intent
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy

TOTALS = TableName.parse("totals")
BROKEN = MillstreamError(Code.SOURCE_MISSING, "orders is gone")
NO_DATA_MS = 2.0
STEPS = (
    "begin", "complete", "fail", "fail keeping the intent", "abandon", "resolve", "fail early", "skip",
    "no data by the scheduler", "no data by hand", "lose the intent", "replace", "replace with a load", "many",
)  # fmt: skip


class History:
    """Two tables, and steps that are skipped where they are impossible."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self.catalog, self.clock = catalog, clock
        self.catalog.create_stream_table(new_table("totals"))
        self.catalog.create_stream_table(new_table("other"))
        self.intents: dict[str, Intent] = {}

    def step(self, name: str, what: str, number: int) -> None:
        self.clock.pass_seconds(1)
        table = self.catalog.get(TableName.parse(name))
        intent, started = self.intents.get(name), self.clock.now
        self.clock.pass_seconds(NO_DATA_MS / 1000)
        by = InitiatedBy.SCHEDULER if "scheduler" in what else InitiatedBy.MANUAL
        match what:
            case "begin" if intent is None:
                self.intents[name] = self.catalog.begin_refresh(start(table))
            case "complete" if intent is not None:
                del self.intents[name]
                done = outcome(table, rows_updated=number, rows_deleted=2, duration_ms=number * 0.5)
                self.catalog.complete_refresh(intent, done)
            case "fail" if intent is not None:
                del self.intents[name]
                self.catalog.fail_refresh(intent, BROKEN, max_consecutive_errors=3)
            case "fail keeping the intent" if intent is not None:
                self.catalog.fail_refresh(intent, BROKEN, max_consecutive_errors=3, keep_intent=True)
            case "abandon" if intent is not None:
                del self.intents[name]
                self.catalog.abandon_intent(intent, "interrupted")
            case "lose the intent" if intent is not None:
                del self.intents[name]
                with self.catalog._database.write() as connection:
                    connection.execute(sa.text("DELETE FROM ms_intents WHERE stream_table_id = :id"), {"id": table.id})
            case "resolve":
                self.catalog.resolve_running()
            case "fail early":
                self.catalog.record_failure(
                    table.id, BROKEN, initiated_by=by, started_at=started, max_consecutive_errors=3
                )
            case "skip":
                self.catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "busy")
            case "no data by the scheduler" | "no data by hand" if intent is None:
                reason = "UNCHANGED" if number % 3 else "AGED"
                self.catalog.record_no_data(no_data(table, initiated_by=by, started_at=started, reason=reason))
            case "many":
                items = [
                    no_data(
                        t,
                        initiated_by=InitiatedBy.SCHEDULER,
                        started_at=started,
                        reason="UNCHANGED",
                        frontier=t.frontier,
                        base_frontier=t.base_frontier,
                        data_timestamp=self.catalog._clock(),
                    )
                    for t in self.catalog.list()
                ]
                self.catalog.record_unchanged(items, self.catalog.generation(), started)
            case "replace":
                self.intents.pop(name, None)
                self.catalog.replace_stream_table(new_definition(table))
            case "replace with a load":
                self.intents.pop(name, None)
                load = self.catalog.begin_load(start(table))
                if number % 2:
                    self.catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "busy")
                self.catalog.replace_stream_table(new_definition(table, load))


any_step = st.tuples(st.sampled_from(["totals", "other"]), st.sampled_from(STEPS), st.integers(0, 9))


def check(catalog: Catalog, steps: list[tuple[str, str, int]], clock: Clock) -> None:
    history = History(catalog, clock)
    for step in steps:
        history.step(*step)
        assert_equal(catalog)


@given(steps=st.lists(any_step, max_size=25))
@settings(max_examples=30, deadline=None)
def test_any_history(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]) -> None:
    clock = Clock()
    with Catalog.open(tmp_path_factory.mktemp("lake"), clock) as catalog:
        check(catalog, steps, clock)


@pytest.mark.postgres
@given(steps=st.lists(any_step, min_size=10, max_size=25))
@settings(max_examples=5, deadline=None)
def test_any_history_in_postgres(steps: list[tuple[str, str, int]]) -> None:
    clock = Clock()
    with Catalog.open(new_schema_url(), clock) as catalog:
        check(catalog, steps, clock)


def test_pruning_keeps_the_totals(catalog: Catalog, clock: Clock, tmp_path: Path) -> None:
    history = History(catalog, clock)
    for step in ("begin", "complete", "fail early", "no data by the scheduler", "no data by the scheduler"):
        history.step("totals", step, 1)
    before = catalog.stats()
    assert before[1].total_refreshes == 4
    assert catalog.prune_history(clock.pass_seconds(1)) == 2
    assert len(catalog.history()) == 1  # the newest one stays
    assert [(s.total_refreshes, s.last_refresh_action) for s in catalog.stats()] == [(0, None), (4, Action.NO_DATA)]
    history.step("totals", "no data by the scheduler", 1)
    (row,) = catalog.history()
    assert row.repeats == 3
    assert catalog.stats()[1].total_refreshes == 5


def test_a_failure_that_may_be_recovered_is_not_pruned(catalog: Catalog, clock: Clock) -> None:
    history = History(catalog, clock)
    for step in ("begin", "fail keeping the intent"):
        history.step("totals", step, 1)
    assert catalog.prune_history(clock.pass_seconds(60)) == 0
    history.step("totals", "complete", 1)
    assert_equal(catalog)
