"""Stream tables and their stages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.schema import intents, stages, stream_tables
from millstream.catalog.stores import dependencies
from millstream.errors import Code, MillstreamError
from millstream.results import RefreshMode, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

    from millstream.catalog.models import Definition, NewStreamTable, Stage
    from millstream.naming import TableName


def insert(connection: Connection, new: NewStreamTable, now: datetime) -> None:
    """Record a stream table that was never refreshed, with its dependencies and stages."""
    values = _definition_values(new.definition) | {
        "id": new.id,
        "schema_name": new.name.schema,
        "name": new.name.name,
        "schedule": new.schedule,
        "refresh_mode": new.refresh_mode,
        "status": Status.INITIALIZING,
        "is_populated": False,
        "frontier": {},
        "base_frontier": {},
        "consecutive_errors": 0,
        "needs_reinit": False,
        "reinit_mark": 0,
        "definition_version": 1,
        "created_at": now,
        "updated_at": now,
    }
    connection.execute(sa.insert(stream_tables).values(values))
    dependencies.replace(connection, new.id, new.definition.dependencies)
    _insert_stages(connection, new.id, new.stages)


def locked(connection: Connection, name: TableName) -> Row[Any, Any, Any, Any]:
    """A stream table's row (id, status, is_populated, open refresh), locked against other writers until the commit."""
    chosen = (
        sa.select(
            stream_tables.c.id,
            stream_tables.c.status,
            stream_tables.c.is_populated,
            intents.c.refresh_id.label("open_refresh_id"),
        )
        .outerjoin_from(stream_tables, intents)
        .where(stream_tables.c.schema_name == name.schema, stream_tables.c.name == name.name)
        .with_for_update(of=stream_tables)
    )
    row = connection.execute(chosen).first()
    if row is None:
        raise MillstreamError(Code.NOT_A_STREAM_TABLE, f"there is no stream table {name}")
    return row


def update(connection: Connection, table_id: str, values: Mapping[str, Any], now: datetime) -> bool:
    """Set columns of a stream table; false if it does not exist."""
    change = sa.update(stream_tables).where(stream_tables.c.id == table_id).values(**values, updated_at=now)
    return connection.execute(change).rowcount == 1


def redefine(
    connection: Connection, table_id: str, definition: Definition, new_stages: tuple[Stage, ...], now: datetime
) -> None:
    """Replace a stream table's definition and stages."""
    update(connection, table_id, _definition_values(definition), now)
    dependencies.replace(connection, table_id, definition.dependencies)
    connection.execute(sa.delete(stages).where(stages.c.stream_table_id == table_id))
    _insert_stages(connection, table_id, new_stages)


def never_refreshed() -> dict[str, Any]:
    """The columns of a stream table that has only a definition; a suspended table stays suspended."""
    suspended = stream_tables.c.status == Status.SUSPENDED
    return {
        "status": sa.case((suspended, stream_tables.c.status), else_=sa.literal(Status.INITIALIZING.value)),
        "status_reason": None,
        "is_populated": False,
        "data_timestamp": None,
        "frontier": {},
        "base_frontier": {},
        "last_refresh_at": None,
        "consecutive_errors": 0,
        "needs_reinit": False,
        "reinit_reason": None,
    }


def mark_reinit(connection: Connection, table_id: str, reason: str, now: datetime) -> None:
    """Make the next refresh reinitialise the table; the mark survives a refresh that is under way."""
    mark = {"needs_reinit": True, "reinit_reason": reason, "reinit_mark": stream_tables.c.reinit_mark + 1}
    update(connection, table_id, mark, now)


def status_change(status: Status, is_populated: bool) -> dict[str, Any]:
    """What a user's change of status sets: resuming resets the error count, and gives INITIALIZING without contents."""
    if status is Status.SUSPENDED:
        return {"status": Status.SUSPENDED, "status_reason": None}
    resumed = Status.ACTIVE if is_populated else Status.INITIALIZING
    return {"status": resumed, "status_reason": None, "consecutive_errors": 0}


def user_change(
    schedule: str | None, refresh_mode: RefreshMode | None, status: Status | None, is_populated: bool
) -> dict[str, Any]:
    """The columns that an ALTER sets; None changes nothing."""
    values: dict[str, Any] = {}
    if schedule is not None:
        values["schedule"] = schedule
    if refresh_mode is not None:
        values["refresh_mode"] = refresh_mode
    if status is not None:
        values |= status_change(status, is_populated)
    return values


def delete(connection: Connection, table_id: str) -> None:
    """Delete a stream table, and with it its stages, dependencies, history and intent."""
    connection.execute(sa.delete(stream_tables).where(stream_tables.c.id == table_id))


def set_versions(connection: Connection, table_id: str, versions: Mapping[str, int]) -> None:
    """Record the Delta versions of stages that a refresh committed."""
    mine = (stages.c.id == sa.bindparam("stage")) & (stages.c.stream_table_id == table_id)
    change = sa.update(stages).where(mine).values(version=sa.bindparam("reached"))
    for stage, version in versions.items():
        if connection.execute(change, {"stage": stage, "reached": version}).rowcount != 1:
            raise MillstreamError(
                Code.COMMIT_CONFLICT,
                "the stream table was replaced while it was being refreshed",
                hint="refresh again",
            )


def _definition_values(definition: Definition) -> dict[str, Any]:
    return {
        "original_query": definition.original_query,
        "dialect": definition.dialect,
        "definition": definition.body.dump(),
        "settings": dict(definition.settings),
        "columns": [list(c) for c in definition.columns],
        "functions_used": list(definition.functions_used),
    }


def _insert_stages(connection: Connection, table_id: str, items: tuple[Stage, ...]) -> None:
    rows = [
        {
            "id": s.id,
            "stream_table_id": table_id,
            "ordinal": s.ordinal,
            "path": s.path,
            "is_public": s.is_public,
            "version": s.version,
        }
        for s in items
    ]
    connection.execute(sa.insert(stages), rows)
