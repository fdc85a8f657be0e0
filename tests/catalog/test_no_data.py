"""Refreshes that find nothing to do: one row of the history for as many as the scheduler makes in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

import pytest

from kits.catalog import T0, Clock, new_definition, new_table, no_data, refreshed, start
from millstream.catalog import Catalog, StreamTable
from millstream.catalog.models import LakeObject, NoData, ObjectKind
from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshStatus, Status

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


# Looks at many tables, without their locks


@pytest.fixture
def tables(catalog: Catalog) -> list[StreamTable]:
    """Four tables that were refreshed once, under the ids 1 to 4."""
    created = [catalog.create_stream_table(new_table(f"t{i}")) for i in range(4)]
    for each in created:
        refreshed(catalog, each)
    return [catalog.get(each.name) for each in created]


def seen(table: StreamTable, at: datetime, **changes: Any) -> NoData:
    """A look at which the table was as it is given."""
    values = {"frontier": table.frontier, "base_frontier": table.base_frontier, "data_timestamp": at, "started_at": at}
    return no_data(table, initiated_by=InitiatedBy.SCHEDULER, **(values | changes))


def recorded(catalog: Catalog, clock: Clock, tables: Sequence[StreamTable], **changes: Any) -> list[str]:
    """The names of the tables that a look is recorded for; it takes five milliseconds."""
    generation, at = catalog.generation(), clock.pass_seconds(1)
    clock.pass_seconds(0.005)
    found = catalog.record_unchanged([seen(t, at, **changes) for t in tables], generation, at)
    return [str(t.name) for t in tables if t.id in found]


def test_a_look_extends_the_rows_of_the_one_before(catalog: Catalog, clock: Clock, tables: list[StreamTable]) -> None:
    before = catalog.stats()
    assert recorded(catalog, clock, tables[:2]) == ["t0", "t1"]
    deadline = clock.now + timedelta(seconds=1)
    assert recorded(catalog, clock, tables, freshness_deadline=deadline) == ["t0", "t1", "t2", "t3"]
    at = clock.now - timedelta(milliseconds=5)
    rows = {str(r.table_name): r for r in catalog.history() if r.action is Action.NO_DATA}
    assert {name: (r.refresh_id, r.repeats) for name, r in rows.items()} == {
        "t0": (5, 2),
        "t1": (6, 2),
        "t2": (7, 1),
        "t3": (8, 1),
    }
    assert {(r.data_timestamp, r.end_time, r.freshness_deadline) for r in rows.values()} == {(at, clock.now, deadline)}
    assert all(r.duration_ms == pytest.approx(5) for r in rows.values())
    for table in tables:
        now = catalog.get(table.name)
        assert (now.frontier, now.base_frontier, now.stages) == (table.frontier, table.base_frontier, table.stages)
        assert (now.data_timestamp, now.last_refresh_at, now.updated_at) == (at, clock.now, clock.now)
    more = [a.successful_refreshes - b.successful_refreshes for a, b in zip(catalog.stats(), before, strict=True)]
    assert more == [2, 2, 1, 1]
    assert {s.last_refresh_at for s in catalog.stats()} == {clock.now}
    assert catalog.leadership().woke_at == at


def test_an_empty_look_still_wakes(catalog: Catalog, clock: Clock) -> None:
    assert recorded(catalog, clock, []) == []
    assert catalog.leadership().woke_at is not None


def test_times_may_differ(catalog: Catalog, clock: Clock, tables: list[StreamTable]) -> None:
    """A table that reads one outside the look stands for an older time."""
    for _ in range(2):
        generation, at = catalog.generation(), clock.pass_seconds(1)
        earlier = at - timedelta(milliseconds=100)
        items = [seen(tables[0], at), seen(tables[1], at, data_timestamp=earlier)]
        assert len(catalog.record_unchanged(items, generation, at)) == 2
    assert [catalog.get(t.name).data_timestamp for t in tables[:2]] == [at, earlier]
    assert catalog.history()[0].repeats == catalog.history()[1].repeats == 2


def test_what_happened_after_the_look_is_kept(catalog: Catalog, clock: Clock, tables: list[StreamTable]) -> None:
    """Another process has refreshed, marked or failed a table since the catalog was read."""
    moved, marked, running, failed = tables
    refreshed(catalog, moved, new_frontier={"orders": 99}, base_frontier={"orders": 99})
    catalog.mark_needs_reinit(marked.id, "a source was replaced")
    catalog.begin_refresh(start(running))
    error = MillstreamError(Code.REFRESH_FAILED, "x")
    catalog.record_failure(
        failed.id, error, initiated_by=InitiatedBy.MANUAL, started_at=clock.now, max_consecutive_errors=3
    )
    before = catalog.list()
    assert recorded(catalog, clock, tables) == []
    assert catalog.list() == before


def test_a_later_time_is_kept(catalog: Catalog, clock: Clock, tables: list[StreamTable]) -> None:
    """Another process has looked at the same frontier, later."""
    generation, early, late = catalog.generation(), clock.pass_seconds(1), clock.pass_seconds(1)
    first, second = tables[:2]
    assert catalog.record_unchanged([seen(first, late)], generation, late) == {first.id}
    assert catalog.record_unchanged([seen(first, early), seen(second, early)], generation, early) == {second.id}
    assert catalog.get(first.name).data_timestamp == late


@pytest.mark.parametrize("change", ["create", "alter", "drop", "view", "suspend"])
def test_nothing_is_recorded_under_other_definitions(
    catalog: Catalog, clock: Clock, tables: list[StreamTable], change: str
) -> None:
    generation, at = catalog.generation(), clock.pass_seconds(1)
    match change:
        case "create":
            catalog.create_stream_table(new_table("more"))
        case "alter":
            catalog.replace_stream_table(new_definition(tables[0]))
        case "drop":
            catalog.drop_stream_table(tables[0].name)
        case "view":
            catalog.put_lake_object(LakeObject(kind=ObjectKind.VIEW, name=TableName.parse("v"), text="SELECT 1"))
        case "suspend":
            catalog.alter_stream_table(tables[0].name, status=Status.SUSPENDED)
    before = catalog.list()
    assert catalog.record_unchanged([seen(t, at) for t in tables], generation, at) == frozenset()
    assert catalog.list() == before
    assert recorded(catalog, clock, tables[1:]) == ["t1", "t2", "t3"]


def test_the_pulse_is_what_the_tables_say(catalog: Catalog, clock: Clock, tables: list[StreamTable]) -> None:
    catalog.mark_needs_reinit(tables[1].id, "x")
    intent = catalog.begin_refresh(start(tables[2]))
    pulse = catalog.pulse()
    assert (pulse.generation, pulse.leadership) == (catalog.generation(), catalog.leadership())
    assert pulse.newest_event_id == catalog.events()[-1].event_id
    assert [e.event_id for e in catalog.record_events([Event.of(EventName.DAEMON_PAUSED, clock.now)])] == [
        catalog.pulse().newest_event_id
    ]
    standings = {s.id: s for s in pulse.tables}
    assert standings[tables[2].id].open_refresh_id == intent.refresh_id
    for table in catalog.list():
        found = standings[table.id]
        assert (found.stage_id, found.version) == (table.public_stage.id, table.public_stage.version)
        same = {f.name for f in fields(found)} & {f.name for f in fields(table)}
        assert len(same) == len(fields(found)) - 2
        assert {n: getattr(found, n) for n in same} == {n: getattr(table, n) for n in same}


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
