"""Refreshes: intents, outcomes, history and the figures made of it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from kits.catalog import T0, Clock, new_table, no_data, outcome, refreshed, start
from millstream.catalog import Catalog, StreamTable
from millstream.catalog.refresh_details import RefreshDetails
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshRecord, RefreshStatus, Status, StreamTableStatus

TOTALS = TableName.parse("totals")
FIGURES = RefreshDetails(changed_rows=1, source_rows=2, rows_read=3, jobs=None, milliseconds={"read": 0.5})
BROKEN = MillstreamError(Code.SOURCE_MISSING, "orders is gone", hint="create it")


@pytest.fixture
def table(catalog: Catalog) -> StreamTable:
    return catalog.create_stream_table(new_table())


def test_a_begun_refresh_is_running_and_has_an_intent(catalog: Catalog, table: StreamTable) -> None:
    intent = catalog.begin_refresh(start(table, freshness_deadline=T0 + timedelta(minutes=1)))
    assert catalog.open_intent(table.id) == intent
    assert catalog.open_intents() == (intent,)
    assert intent.new_frontier == {"orders": 7}
    (row,) = catalog.history(TOTALS)
    assert (row.refresh_id, row.status, row.action) == (intent.refresh_id, RefreshStatus.RUNNING, Action.DIFFERENTIAL)
    assert (row.end_time, row.duration_ms, row.reason) == (None, None, "SMALL_CHANGE")
    assert row.freshness_deadline == T0 + timedelta(minutes=1)
    now = catalog.get(TOTALS)
    assert now == dataclasses.replace(table, open_refresh_id=intent.refresh_id)  # nothing else has moved


def test_completing_moves_everything_at_once(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    intent = catalog.begin_refresh(start(table))
    clock.pass_seconds(1.5)
    result = outcome(table, 4, rows_updated=2, rows_deleted=1, details=FIGURES)
    catalog.complete_refresh(intent, result)

    now = catalog.get(TOTALS)
    assert (now.status, now.is_populated, now.consecutive_errors) == (Status.ACTIVE, True, 0)
    assert (now.frontier, now.base_frontier, now.data_timestamp) == ({"orders": 7}, {"orders": 7}, T0)
    assert (now.last_refresh_at, now.open_refresh_id) == (clock.now, None)
    assert [s.version for s in now.stages] == [4, 4]
    assert catalog.open_intent(table.id) is None
    (row,) = catalog.history(TOTALS)
    assert row.as_record() == RefreshRecord(
        refresh_id=intent.refresh_id,
        name="totals",
        data_timestamp=T0,
        start_time=T0,
        end_time=clock.now,
        action=Action.DIFFERENTIAL,
        status=RefreshStatus.COMPLETED,
        initiated_by=InitiatedBy.MANUAL,
        rows_inserted=3,
        rows_updated=2,
        rows_deleted=1,
        duration_ms=1500.0,
        reason="SMALL_CHANGE",
        error_message=None,
        details={"changed_rows": 1, "source_rows": 2, "rows_read": 3, "jobs": None, "ms": {"read": 0.5}},
    )


def test_what_was_done_wins_over_what_was_planned(catalog: Catalog, table: StreamTable) -> None:
    intent = catalog.begin_refresh(start(table))
    catalog.complete_refresh(intent, outcome(table, action=Action.FULL, reason="FEED_LOST", duration_ms=7.5))
    (row,) = catalog.history(TOTALS)
    assert (row.action, row.reason, row.duration_ms) == (Action.FULL, "FEED_LOST", 7.5)


def test_one_refresh_is_open_at_a_time(catalog: Catalog, table: StreamTable) -> None:
    intent = catalog.begin_refresh(start(table))
    for call in (lambda: catalog.begin_refresh(start(table)), lambda: catalog.record_no_data(no_data(table))):
        with pytest.raises(MillstreamError) as caught:
            call()
        assert caught.value.code == Code.REFRESH_OPEN
    assert [r.refresh_id for r in catalog.history()] == [intent.refresh_id]
    assert catalog.get(TOTALS).frontier == {}


def test_whoever_was_overtaken_cannot_end_the_refresh(catalog: Catalog, table: StreamTable) -> None:
    late = catalog.begin_refresh(start(table))
    catalog.abandon_intent(late, "cut short")
    catalog.begin_refresh(start(table))
    before = catalog.get(TOTALS), catalog.history()
    for call in (
        lambda: catalog.complete_refresh(late, outcome(table)),
        lambda: catalog.fail_refresh(late, BROKEN, max_consecutive_errors=3),
        lambda: catalog.fail_refresh(late, BROKEN, max_consecutive_errors=3, keep_intent=True),
        lambda: catalog.abandon_intent(late, "again"),
    ):
        with pytest.raises(MillstreamError) as caught:
            call()
        assert caught.value.code == Code.COMMIT_CONFLICT
        assert (catalog.get(TOTALS), catalog.history()) == before


def test_a_stage_of_another_table_is_refused_and_nothing_moves(catalog: Catalog, table: StreamTable) -> None:
    other = catalog.create_stream_table(new_table("other"))
    intent = catalog.begin_refresh(start(table))
    with pytest.raises(MillstreamError) as caught:
        catalog.complete_refresh(intent, outcome(other))
    assert caught.value.code == Code.COMMIT_CONFLICT
    assert catalog.open_intent(table.id) == intent
    assert not catalog.get(TOTALS).is_populated


def test_errors_in_a_row_lead_to_error_and_a_success_forgives_them(catalog: Catalog, table: StreamTable) -> None:
    refreshed(catalog, table)
    for errors, status in ((1, Status.ACTIVE), (2, Status.ACTIVE), (3, Status.ERROR)):
        catalog.fail_refresh(catalog.begin_refresh(start(table)), BROKEN, max_consecutive_errors=3)
        now = catalog.get(TOTALS)
        assert (now.consecutive_errors, now.status) == (errors, status)
    assert now.status_reason == "SOURCE_MISSING: orders is gone"
    assert now.frontier == {"orders": 7}
    assert now.open_refresh_id is None
    row = catalog.history(TOTALS)[0]
    assert (row.status, row.error_code, row.error_message) == (RefreshStatus.FAILED, "SOURCE_MISSING", "orders is gone")
    refreshed(catalog, table)
    now = catalog.get(TOTALS)
    assert (now.consecutive_errors, now.status, now.status_reason) == (0, Status.ACTIVE, None)


def test_a_failure_that_was_undone_knows_where_the_stages_are(catalog: Catalog, table: StreamTable) -> None:
    refreshed(catalog, table)
    now, stage = catalog.get(TOTALS), table.stages[0].id
    catalog.fail_refresh(
        catalog.begin_refresh(start(table)), BROKEN, max_consecutive_errors=3, stage_versions={stage: 77}
    )
    after = catalog.get(TOTALS)
    assert {s.id: s.version for s in after.stages} == {s.id: s.version for s in now.stages} | {stage: 77}
    assert (after.frontier, after.open_refresh_id) == (now.frontier, None)


def test_what_was_committed_may_have_to_be_computed_anew(catalog: Catalog, table: StreamTable) -> None:
    done = outcome(table, action=Action.FULL, reinit_reason="PLAN_FAILED: by zero")
    catalog.complete_refresh(catalog.begin_refresh(start(table)), done)
    now = catalog.get(TOTALS)
    assert (now.is_populated, now.needs_reinit, now.reinit_reason) == (True, True, "PLAN_FAILED: by zero")
    catalog.complete_refresh(catalog.begin_refresh(start(table)), outcome(table, action=Action.REINITIALIZE))
    assert not catalog.get(TOTALS).needs_reinit


def test_a_failure_that_may_have_committed_keeps_its_intent(catalog: Catalog, table: StreamTable) -> None:
    intent = catalog.begin_refresh(start(table))
    catalog.fail_refresh(intent, BROKEN, max_consecutive_errors=3, keep_intent=True)
    assert catalog.open_intent(table.id) == intent
    assert catalog.history()[0].status == RefreshStatus.FAILED
    catalog.complete_refresh(intent, outcome(table))  # the recovery found the commit
    row = catalog.history()[0]
    assert (row.status, row.error_code, row.error_message) == (RefreshStatus.COMPLETED, None, None)
    assert catalog.get(TOTALS).consecutive_errors == 0


def test_a_failure_before_there_is_a_plan(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    started = clock.now
    clock.pass_seconds(0.25)
    for _ in range(2):
        catalog.record_failure(
            table.id, BROKEN, initiated_by=InitiatedBy.SCHEDULER, started_at=started, max_consecutive_errors=2
        )
    row = catalog.history()[0]
    assert (row.status, row.action, row.duration_ms) == (RefreshStatus.FAILED, None, 250.0)
    assert catalog.get(TOTALS).status == Status.ERROR


def test_a_message_that_is_a_whole_plan_is_cut(catalog: Catalog, table: StreamTable) -> None:
    error = MillstreamError(Code.REFRESH_FAILED, "cannot cast '\0': " + "plan " * 100_000)
    catalog.fail_refresh(catalog.begin_refresh(start(table)), error, max_consecutive_errors=1)
    message = catalog.history()[0].error_message or ""
    assert message.startswith("cannot cast '\N{REPLACEMENT CHARACTER}': plan")
    assert len(message) < 10_000
    assert len(catalog.get(TOTALS).status_reason or "") < 10_000


def test_set_error_is_at_once(catalog: Catalog, table: StreamTable) -> None:
    catalog.set_error(table.id, "SOURCE_CHANGED: amount is gone")
    now = catalog.get(TOTALS)
    assert (now.status, now.status_reason) == (Status.ERROR, "SOURCE_CHANGED: amount is gone")


@pytest.mark.parametrize("ending", ["complete", "fail", "no_data"])
def test_a_table_suspended_meanwhile_stays_suspended(catalog: Catalog, table: StreamTable, ending: str) -> None:
    if ending == "no_data":
        catalog.alter_stream_table(TOTALS, status=Status.SUSPENDED)
        catalog.record_no_data(no_data(table))
    else:
        intent = catalog.begin_refresh(start(table))
        catalog.alter_stream_table(TOTALS, status=Status.SUSPENDED)
        if ending == "complete":
            catalog.complete_refresh(intent, outcome(table))
        else:
            catalog.fail_refresh(intent, BROKEN, max_consecutive_errors=1)
    assert catalog.get(TOTALS).status == Status.SUSPENDED


def test_no_data_moves_frontier_and_data_timestamp_all_the_same(
    catalog: Catalog, table: StreamTable, clock: Clock
) -> None:
    refreshed(catalog, table)
    catalog.fail_refresh(catalog.begin_refresh(start(table)), BROKEN, max_consecutive_errors=1)
    at = clock.pass_seconds(60)
    refresh_id = catalog.record_no_data(no_data(table, data_timestamp=at, started_at=at))
    now = catalog.get(TOTALS)
    assert (now.frontier, now.base_frontier) == ({"orders": 8}, {"orders": 8})
    assert (now.data_timestamp, now.last_refresh_at) == (at, at)
    assert (now.status, now.consecutive_errors) == (Status.ACTIVE, 0)
    row = catalog.history()[0]
    assert (row.refresh_id, row.action, row.status) == (refresh_id, Action.NO_DATA, RefreshStatus.COMPLETED)
    assert (row.end_time, row.reason, row.rows_inserted) == (at, "NO_CHANGES", 0)


def test_a_skip_is_recorded_and_moves_nothing(catalog: Catalog, table: StreamTable) -> None:
    refresh_id = catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "STILL_RUNNING")
    row = catalog.history()[0]
    assert (row.refresh_id, row.action, row.status) == (refresh_id, Action.SKIP, RefreshStatus.SKIPPED)
    assert catalog.get(TOTALS) == table


def test_refreshes_of_a_dropped_table_are_refused(catalog: Catalog, table: StreamTable) -> None:
    catalog.drop_stream_table(TOTALS)
    for call in (
        lambda: catalog.begin_refresh(start(table)),
        lambda: catalog.record_no_data(no_data(table)),
        lambda: catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "X"),
        lambda: catalog.record_failure(
            table.id, BROKEN, initiated_by=InitiatedBy.MANUAL, started_at=T0, max_consecutive_errors=1
        ),
    ):
        with pytest.raises(MillstreamError) as caught:
            call()
        assert caught.value.code == Code.NOT_A_STREAM_TABLE


def test_refresh_ids_grow_over_the_lake_and_start_above_the_floor(catalog: Catalog, table: StreamTable) -> None:
    other = catalog.create_stream_table(new_table("other"))
    ids = [
        refreshed(catalog, table).refresh_id,
        catalog.record_no_data(no_data(other)),
        refreshed(catalog, other, floor=5_000_000_000).refresh_id,  # the storage remembers a catalog now lost
        refreshed(catalog, table, floor=3).refresh_id,
    ]
    assert ids == [1, 2, 5_000_000_001, 5_000_000_002]


def test_an_abandoned_refresh_failed_without_counting_as_an_error(catalog: Catalog, table: StreamTable) -> None:
    intent = catalog.begin_refresh(start(table))
    catalog.abandon_intent(intent, "the process ended before it committed")
    row = catalog.history()[0]
    assert (row.status, row.error_message) == (RefreshStatus.FAILED, "the process ended before it committed")
    assert catalog.get(TOTALS) == table


def test_history_is_newest_first_and_limited(catalog: Catalog, table: StreamTable) -> None:
    other = catalog.create_stream_table(new_table("other"))
    for _ in range(3):
        catalog.record_no_data(no_data(table))
        catalog.record_no_data(no_data(other))
    assert [r.refresh_id for r in catalog.history(TOTALS)] == [5, 3, 1]
    assert [r.refresh_id for r in catalog.history(limit=4)] == [6, 5, 4, 3]
    assert {str(r.table_name) for r in catalog.history()} == {"totals", "other"}


def test_pruning_keeps_what_is_newer_or_running(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    catalog.record_no_data(no_data(table))
    running = catalog.begin_refresh(start(table))
    other = catalog.create_stream_table(new_table("other"))
    clock.pass_seconds(60)
    kept = catalog.record_no_data(no_data(other))
    assert catalog.prune_history(clock.now) == 1
    assert [r.refresh_id for r in catalog.history()] == [kept, running.refresh_id]


def test_pruning_keeps_the_newest_row_of_each_table_and_goes_bite_by_bite(
    catalog: Catalog, table: StreamTable, clock: Clock
) -> None:
    other = catalog.create_stream_table(new_table("other"))
    for _ in range(4):
        catalog.record_no_data(no_data(table))
        catalog.record_no_data(no_data(other))
    clock.pass_seconds(60)
    assert catalog.prune_history(clock.now - timedelta(seconds=90)) == 0
    assert catalog.prunable_history(clock.now) == 6
    assert catalog.prune_history(clock.now, at_most=4) == 4
    assert [r.refresh_id for r in catalog.history()] == [8, 7, 6, 5]
    assert catalog.prune_history(clock.now, at_most=4) == 2
    assert [r.refresh_id for r in catalog.history()] == [8, 7]
    assert catalog.prune_history(clock.now) == catalog.prunable_history(clock.now) == 0


def test_rewriting_a_stage_moves_its_version_and_nothing_else(catalog: Catalog, table: StreamTable) -> None:
    refreshed(catalog, table)
    before = catalog.get(TOTALS)
    stage = before.public_stage
    catalog.record_rewritten(before.id, stage.id, 99)
    after = catalog.get(TOTALS)
    assert after.public_stage.version == 99
    assert dataclasses.replace(after, stages=before.stages) == before


def test_statuses(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    refreshed(catalog, table)
    catalog.create_stream_table(new_table("a.fresh", schedule="CALCULATED"))
    clock.pass_seconds(2.5)
    fresh, totals = catalog.statuses()
    assert (fresh.name, fresh.status, fresh.staleness) == ("a.fresh", Status.INITIALIZING, None)
    assert totals == StreamTableStatus(
        name="totals",
        status=Status.ACTIVE,
        refresh_mode=table.refresh_mode,
        is_populated=True,
        consecutive_errors=0,
        schedule="1m",
        data_timestamp=T0,
        staleness=2.5,
    )


def test_stats(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    catalog.create_stream_table(new_table("never"))
    for milliseconds in (10.0, 20.0):
        intent = catalog.begin_refresh(start(table))
        done = outcome(table, rows_inserted=2**40, rows_updated=1, rows_deleted=2, duration_ms=milliseconds)
        catalog.complete_refresh(intent, done)
    catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "X")
    catalog.fail_refresh(catalog.begin_refresh(start(table)), BROKEN, max_consecutive_errors=3, duration_ms=9e9)
    clock.pass_seconds(61)
    never, totals = catalog.stats({TOTALS: 60})
    assert (totals.schema, totals.name, totals.is_populated) == ("default", "totals", True)
    assert (totals.total_refreshes, totals.successful_refreshes, totals.failed_refreshes) == (4, 2, 1)
    assert (totals.total_rows_inserted, totals.total_rows_updated, totals.total_rows_deleted) == (2**41, 2, 4)
    assert totals.avg_duration_ms == 15.0
    assert (totals.last_refresh_action, totals.last_refresh_status) == (Action.DIFFERENTIAL, RefreshStatus.FAILED)
    assert totals.last_refresh_at == T0
    assert (totals.staleness_secs, totals.stale) == (61.0, True)
    assert (never.total_refreshes, never.avg_duration_ms, never.last_refresh_at, never.stale) == (0, None, None, None)
    assert catalog.stats({TOTALS: 61})[1].stale is False
    assert catalog.stats({TableName.parse("never"): 1})[0].stale is False  # it has no contents that could be
    assert catalog.stats()[1].stale is None  # cron
