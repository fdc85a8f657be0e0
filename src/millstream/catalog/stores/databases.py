"""Attached databases, their captured tables and their served tables; and the events of changes to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode, OpenTick, Serving
from millstream.catalog.capture_events import mode_events, quarantine_events, reinitialize_events, source_changes
from millstream.catalog.capture_state import CaptureState, DatabaseState
from millstream.catalog.schema import captures, databases, servings
from millstream.catalog.serving_details import ServingDetails
from millstream.catalog.stores import dependencies
from millstream.events import Event

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row


def events_of_change(
    connection: Connection, item: AttachedDatabase, changed: Sequence[Capture], now: datetime
) -> list[Event]:
    """The events of what is about to be recorded about a database and some of its captured tables."""
    row = connection.execute(sa.select(databases).where(databases.c.name == item.name)).one_or_none()
    if row is None:
        return []
    before = _database(row)
    known = {c.id: c for c in read_captures(connection, item.name)} if changed else {}
    altered = source_changes(before, item, known, changed)
    readers = dependencies.readers_of(connection, {change.source for change in altered}) if altered else {}
    return [
        *mode_events(before, item, now),
        *quarantine_events(known, changed, now),
        *reinitialize_events(altered, readers, now),
    ]


def put(connection: Connection, item: AttachedDatabase, now: datetime) -> None:
    """Insert a database, or replace its record."""
    tick = item.open_tick
    values = {
        "address": item.address,
        "cdc": item.cdc,
        "mode": item.mode,
        "system_identifier": str(item.system),
        "timeline": item.timeline,
        "database_name": item.database,
        "database_oid": item.database_oid,
        "position": dict(item.position) if item.position is not None else None,
        "reached_at": item.reached_at,
        "last_tick": item.last_tick,
        "open_tick": {"id": tick.id, "position": dict(tick.position)} if tick is not None else None,
        "details": item.state.dump(),
        "updated_at": now,
    }
    _upsert(connection, databases, {"name": item.name}, values, now)


def put_capture(connection: Connection, item: Capture, now: datetime) -> None:
    """Insert a captured table, or replace its record."""
    values = {
        "database": item.database,
        "schema_name": item.schema,
        "table_name": item.table,
        "oid": item.oid,
        "columns": [list(c) for c in item.columns],
        "key": list(item.key),
        "shape": item.shape,
        "filenodes": item.filenodes,
        "path": item.path,
        "version": item.version,
        "details": item.state.dump(),
        "updated_at": now,
    }
    _upsert(connection, captures, {"id": item.id}, values, now)


def put_serving(connection: Connection, item: Serving, now: datetime) -> None:
    """Insert a served table, or replace its record."""
    values = {
        "database": item.database,
        "schema_name": item.schema,
        "table_name": item.table,
        "details": item.details.dump(),
        "updated_at": now,
    }
    _upsert(connection, servings, {"stream_table_id": item.table_id}, values, now)


def _upsert(
    connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any], now: datetime
) -> None:
    matches = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(sa.update(table).where(matches).values(values)).rowcount == 0:
        connection.execute(sa.insert(table).values({**key, **values, "created_at": now}))


def drop(connection: Connection, name: str) -> None:
    """Delete a database; its captures and servings have already been deleted."""
    connection.execute(sa.delete(databases).where(databases.c.name == name))


def drop_capture(connection: Connection, capture_id: str) -> None:
    """Delete a captured table."""
    connection.execute(sa.delete(captures).where(captures.c.id == capture_id))


def drop_serving(connection: Connection, table_id: str) -> None:
    """Delete the record that a stream table is served."""
    connection.execute(sa.delete(servings).where(servings.c.stream_table_id == table_id))


def read(connection: Connection) -> tuple[AttachedDatabase, ...]:
    """All databases, by name."""
    return tuple(_database(row) for row in connection.execute(sa.select(databases).order_by(databases.c.name)))


def read_captures(connection: Connection, database: str | None = None) -> tuple[Capture, ...]:
    """The captured tables of a database, or of all."""
    query = sa.select(captures).order_by(captures.c.database, captures.c.schema_name, captures.c.table_name)
    if database is not None:
        query = query.where(captures.c.database == database)
    return tuple(_capture(row) for row in connection.execute(query))


def read_servings(connection: Connection, database: str | None = None) -> tuple[Serving, ...]:
    """The served tables of a database, or of all."""
    query = sa.select(servings).order_by(servings.c.database, servings.c.schema_name, servings.c.table_name)
    if database is not None:
        query = query.where(servings.c.database == database)
    return tuple(_serving(row) for row in connection.execute(query))


def _database(row: Row[Any]) -> AttachedDatabase:
    tick = row.open_tick
    return AttachedDatabase(
        name=row.name,
        address=row.address,
        cdc=row.cdc,
        mode=CaptureMode(row.mode),
        system=int(row.system_identifier),
        timeline=row.timeline,
        database=row.database_name,
        database_oid=row.database_oid,
        position=row.position,
        reached_at=row.reached_at,
        last_tick=row.last_tick,
        open_tick=OpenTick(id=tick["id"], position=tick["position"]) if tick is not None else None,
        state=DatabaseState.load(row.details),
    )


def _capture(row: Row[Any]) -> Capture:
    return Capture(
        id=row.id,
        database=row.database,
        schema=row.schema_name,
        table=row.table_name,
        oid=row.oid,
        columns=tuple((name, pg, spark) for name, pg, spark in row.columns),
        key=tuple(row.key),
        shape=row.shape,
        filenodes=row.filenodes,
        path=row.path,
        version=row.version,
        state=CaptureState.load(row.details),
    )


def _serving(row: Row[Any]) -> Serving:
    return Serving(
        table_id=row.stream_table_id,
        database=row.database,
        schema=row.schema_name,
        table=row.table_name,
        details=ServingDetails.load(row.details),
    )
