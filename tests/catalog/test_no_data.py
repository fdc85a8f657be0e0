"""Refreshes that find nothing to do: one row of the history for as many as the scheduler makes in a row."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kits.catalog import T0, Clock, new_table, no_data, refreshed, start
from millstream.catalog import Catalog, StreamTable
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshStatus

TOTALS = TableName.parse("totals")


@pytest.fixture
def table(catalog: Catalog) -> StreamTable:
    return catalog.create_stream_table(new_table())


def look(catalog: Catalog, table: StreamTable, clock: Clock, reason: str = "UNCHANGED") -> int:
    """A look of the scheduler, a minute after the last one."""
    at = clock.pass_seconds(60)
    return catalog.record_no_data(
        no_data(
            table,
            initiated_by=InitiatedBy.SCHEDULER,
            started_at=at - timedelta(milliseconds=3),
            data_timestamp=at,
            frontier={"orders": at.minute},
            reason=reason,
            freshness_deadline=at + timedelta(seconds=9),
        )
    )


def test_the_scheduler_extends_its_row(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    ids = [look(catalog, table, clock) for _ in range(3)]
    assert ids == [1, 1, 1]
    (row,) = catalog.history()
    assert (row.action, row.status, row.repeats) == (Action.NO_DATA, RefreshStatus.COMPLETED, 3)
    assert row.start_time == T0 + timedelta(minutes=1, milliseconds=-3)
    assert (row.end_time, row.data_timestamp) == (clock.now, clock.now)
    assert row.freshness_deadline == clock.now + timedelta(seconds=9)
    assert row.as_record().repeats == 3
    assert row.as_record().freshness_deadline == row.freshness_deadline
    assert row.duration_ms == 3.0
    now = catalog.get(TOTALS)
    assert (now.data_timestamp, now.last_refresh_at, now.frontier) == (clock.now, clock.now, {"orders": 3})
    (stats,) = catalog.stats()
    assert (stats.total_refreshes, stats.successful_refreshes, stats.last_refresh_at) == (3, 3, clock.now)


def test_a_row_of_another_kind_between_begins_a_new_one(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    look(catalog, table, clock)
    by_hand = [catalog.record_no_data(no_data(table, reason="UNCHANGED")) for _ in range(2)]
    assert by_hand == [2, 3]
    assert look(catalog, table, clock) == 4
    refreshed(catalog, table)
    assert look(catalog, table, clock) == 6
    assert look(catalog, table, clock, "AGED") == 7
    assert look(catalog, table, clock, "AGED") == 7
    catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "busy")
    assert look(catalog, table, clock, "AGED") == 9
    assert [r.repeats for r in catalog.history()] == [1, 1, 2, 1, 1, 1, 1, 1, 1]


def test_tables_do_not_share_rows(catalog: Catalog, table: StreamTable, clock: Clock) -> None:
    other = catalog.create_stream_table(new_table("other"))
    assert [look(catalog, t, clock) for t in (table, other, table, other)] == [1, 2, 1, 2]


def test_a_whole_pass_is_one_transaction(catalog: Catalog, clock: Clock) -> None:
    tables = [catalog.create_stream_table(new_table(f"t{i}")) for i in range(4)]
    items = [no_data(t, initiated_by=InitiatedBy.SCHEDULER) for t in tables]
    assert catalog.record_no_data_many(items[:2]) == [1, 2]
    open_one = catalog.begin_refresh(start(tables[3]))
    clock.pass_seconds(1)
    dropped = catalog.drop_stream_table(TableName.parse("t2"))
    assert len(dropped) == 1
    assert catalog.record_no_data_many(items) == [1, 2, None, None]
    assert [(r.refresh_id, r.repeats) for r in catalog.history()] == [(open_one.refresh_id, 1), (2, 2), (1, 2)]
    assert catalog.get(TableName.parse("t3")).frontier == {}
    assert catalog.record_no_data_many([]) == []
    with pytest.raises(ValueError, match="twice"):
        catalog.record_no_data_many([items[0], items[0]])


def test_new_and_extended_rows_in_one_pass(catalog: Catalog, clock: Clock) -> None:
    tables = [catalog.create_stream_table(new_table(f"t{i}")) for i in range(4)]
    items = [no_data(t, initiated_by=InitiatedBy.SCHEDULER) for t in tables]
    assert catalog.record_no_data_many([items[1], items[3]]) == [1, 2]
    assert catalog.record_no_data_many(items) == [3, 1, 4, 2]
    assert catalog.record_no_data_many(items) == [3, 1, 4, 2]


def test_deadlines_are_kept(catalog: Catalog, table: StreamTable) -> None:
    deadline = T0 + timedelta(seconds=5)
    error = MillstreamError(Code.SOURCE_MISSING, "gone")
    catalog.record_skip(table.id, InitiatedBy.SCHEDULER, "busy", deadline)
    catalog.record_failure(
        table.id,
        error,
        initiated_by=InitiatedBy.SCHEDULER,
        started_at=T0,
        max_consecutive_errors=3,
        freshness_deadline=deadline,
    )
    catalog.begin_refresh(start(table, freshness_deadline=deadline))
    assert {r.as_record().freshness_deadline for r in catalog.history()} == {deadline}
