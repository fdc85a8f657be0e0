"""Refreshes that found nothing to do: one of them, or all that the scheduler has looked at together.

The scheduler looks at an unchanged table again and again. Such a refresh does not get a row of its own: it extends the
newest row of the table if that is one of its kind, for the same reason. One that somebody asked for keeps its own row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.models import NoData
from millstream.catalog.schema import UtcTimestamp, intents, refresh_history, stream_tables
from millstream.catalog.stores import counters, lake
from millstream.catalog.stores.history import INSERT, SUCCEED, mark_of_idle_table, milliseconds, moved, new_row
from millstream.results import Action, InitiatedBy, RefreshStatus, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_h = refresh_history.c
_t = stream_tables.c
_IDLE = (
    sa.select(
        _t.id,
        _t.status.label("table_status"),
        _t.is_populated,
        _t.consecutive_errors,
        _t.needs_reinit,
        _t.data_timestamp,
        _t.frontier,
        _t.base_frontier,
        _h.refresh_id.label("newest_id"),
        _h.action,
        _h.status,
        _h.initiated_by,
        _h.reason,
    )
    .outerjoin_from(stream_tables, refresh_history, _h.refresh_id == stream_tables.c.newest_refresh_id)
    .where(
        stream_tables.c.id.in_(sa.bindparam("ids", expanding=True)),
        ~sa.exists().where(intents.c.stream_table_id == stream_tables.c.id),
    )
    .with_for_update(of=stream_tables)
)
_MOVE = SUCCEED.values(**counters.COUNTED)
_EXTENSION = {
    "repeats": _h.repeats + 1,
    "data_timestamp": sa.bindparam("its_data_timestamp", type_=UtcTimestamp),
    "end_time": sa.bindparam("its_end_time", type_=UtcTimestamp),
    "duration_ms": sa.bindparam("its_duration_ms", type_=sa.Double),
    "freshness_deadline": sa.bindparam("its_deadline", type_=UtcTimestamp),
}
_EXTEND = sa.update(refresh_history).where(_h.refresh_id == sa.bindparam("its_id")).values(**_EXTENSION)
# For many tables at once, which differ in nothing else; their frontiers and states are what they were.
_EXTEND_MANY = (
    sa.update(refresh_history).where(_h.refresh_id.in_(sa.bindparam("its_ids", expanding=True))).values(**_EXTENSION)
)
_MOVE_MANY = (
    sa.update(stream_tables)
    .where(_t.id.in_(sa.bindparam("of_ids", expanding=True)))
    .values(
        data_timestamp=sa.bindparam("its_data_timestamp", type_=UtcTimestamp),
        last_refresh_at=sa.bindparam("its_newest_at", type_=UtcTimestamp),
        updated_at=sa.bindparam("its_newest_at", type_=UtcTimestamp),
        **counters.REPEATED,
    )
)


def record(connection: Connection, given: NoData, now: datetime) -> int:
    """Record one refresh.

    Raises:
        MillstreamError: `REFRESH_OPEN` if the last refresh has not ended, `NOT_A_STREAM_TABLE` if dropped.
    """
    (refresh_id,) = record_many(connection, [given], now)
    if refresh_id is None:
        mark_of_idle_table(connection, given.table_id)  # raises
        raise AssertionError("an idle table was not found")
    return refresh_id


def record_many(connection: Connection, given: Sequence[NoData], now: datetime) -> list[int | None]:
    """Record refreshes of different tables; None for a table that was dropped or has an open refresh."""
    ids = [item.table_id for item in given]
    if len(set(ids)) != len(ids):
        raise ValueError("a stream table is given twice")
    lake.lock(connection)
    idle = {row.id: row for row in connection.execute(_IDLE, {"ids": ids})}
    extended = {
        item.table_id: int(idle[item.table_id].newest_id)
        for item in given
        if item.table_id in idle and _continues(idle[item.table_id], item)
    }
    new = [item.table_id for item in given if item.table_id in idle and item.table_id not in extended]
    numbers = dict(zip(new, lake.next_refresh_ids(connection, len(new)), strict=True)) if new else {}
    written = [item for item in given if item.table_id in idle]
    for statement, rows in (
        (_MOVE, [_move(item, (extended | numbers)[item.table_id], now) for item in written]),
        (_EXTEND, [_extension(item, extended[item.table_id], now) for item in written if item.table_id in extended]),
        (INSERT, [_row(item, numbers[item.table_id], now) for item in written if item.table_id in numbers]),
    ):
        if rows:
            connection.execute(statement, rows)
    return [(extended | numbers).get(table_id) for table_id in ids]


def record_unchanged(connection: Connection, given: Sequence[NoData], now: datetime) -> frozenset[str]:
    """Record what the scheduler found without holding locks, for the tables that still are as it saw them."""
    idle = {row.id: row for row in connection.execute(_IDLE, {"ids": [item.table_id for item in given]})}
    same = [item for item in given if item.table_id in idle and _is_as_seen(idle[item.table_id], item)]
    extended = [item for item in same if _continues(idle[item.table_id], item)]
    groups: dict[tuple[datetime, datetime, datetime | None], list[NoData]] = defaultdict(list)
    for item in extended:
        groups[item.data_timestamp, item.started_at, item.freshness_deadline].append(item)
    for items in groups.values():
        newest = [int(idle[item.table_id].newest_id) for item in items]
        took = {"its_newest_at": now, "more_duration_ms": milliseconds(items[0].started_at, now)}
        move = {"of_ids": [i.table_id for i in items], "its_data_timestamp": items[0].data_timestamp, **took}
        connection.execute(_MOVE_MANY, move)
        connection.execute(_EXTEND_MANY, {"its_ids": newest, **_extent(items[0], now)})
    continued = {item.table_id for item in extended}
    if new := [item for item in same if item.table_id not in continued]:
        record_many(connection, new, now)
    return frozenset(item.table_id for item in same)


def _is_as_seen(row: Any, item: NoData) -> bool:
    """Whether an idle table is at the frontiers of a look, and needs no refresh for another reason."""
    is_well = row.table_status == Status.ACTIVE and row.is_populated and not row.needs_reinit
    is_earlier = row.data_timestamp is None or row.data_timestamp <= item.data_timestamp
    is_there = row.frontier == dict(item.frontier) and row.base_frontier == dict(item.base_frontier)
    return bool(is_well and not row.consecutive_errors and is_earlier and is_there)


def _continues(newest: Any, item: NoData) -> bool:
    """Whether the newest row of a table also stands for this refresh."""
    return bool(
        (newest.action, newest.status) == (Action.NO_DATA, RefreshStatus.COMPLETED)
        and newest.initiated_by == item.initiated_by == InitiatedBy.SCHEDULER
        and newest.reason == item.reason
    )


def _move(item: NoData, refresh_id: int, now: datetime) -> dict[str, Any]:
    counted = counters.parameters(
        refresh_id,
        RefreshStatus.COMPLETED,
        Action.NO_DATA,
        now,
        duration_ms=milliseconds(item.started_at, now),
    )
    return moved(item.table_id, item.data_timestamp, item.frontier, item.base_frontier, now) | counted


def _extension(item: NoData, refresh_id: int, now: datetime) -> dict[str, Any]:
    return {"its_id": refresh_id, **_extent(item, now)}


def _extent(item: NoData, now: datetime) -> dict[str, Any]:
    return {
        "its_data_timestamp": item.data_timestamp,
        "its_end_time": now,
        "its_duration_ms": milliseconds(item.started_at, now),
        "its_deadline": item.freshness_deadline,
    }


def _row(item: NoData, refresh_id: int, now: datetime) -> dict[str, Any]:
    row = new_row(
        refresh_id, item.table_id, Action.NO_DATA, RefreshStatus.COMPLETED, item.initiated_by, item.started_at
    )
    return row | {
        "data_timestamp": item.data_timestamp,
        "end_time": now,
        "duration_ms": milliseconds(item.started_at, now),
        "reason": item.reason,
        "freshness_deadline": item.freshness_deadline,
    }
