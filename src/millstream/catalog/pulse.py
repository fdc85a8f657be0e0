"""What the scheduler reads each time it wakes: a few columns of every stream table, and the lake's own row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from millstream.catalog.leadership import Leadership
from millstream.catalog.models import Frontier
from millstream.catalog.schema import events, intents, lake, stages, stream_tables
from millstream.catalog.stores import leadership
from millstream.naming import TableName
from millstream.results import Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_t = stream_tables.c
_NEWEST_EVENT = sa.select(sa.func.coalesce(sa.func.max(events.c.event_id), 0)).scalar_subquery()
_LAKE = sa.select(lake.c.generation, _NEWEST_EVENT.label("newest_event_id"))
_STANDINGS = (
    sa.select(
        _t.id,
        _t.schema_name,
        _t.name,
        _t.status,
        _t.is_populated,
        _t.data_timestamp,
        _t.last_refresh_at,
        _t.created_at,
        _t.frontier,
        _t.base_frontier,
        _t.consecutive_errors,
        _t.needs_reinit,
        stages.c.id.label("stage_id"),
        stages.c.version,
        intents.c.refresh_id.label("open_refresh_id"),
    )
    .join_from(stream_tables, stages, sa.and_(stages.c.stream_table_id == _t.id, stages.c.is_public))
    .outerjoin(intents, intents.c.stream_table_id == _t.id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A stream table without its definition: what refreshes change.

    Args:
        stage_id: its public stage, at `version`.
        open_refresh_id: the refresh that is running, or was interrupted.
    """

    id: str
    name: TableName
    status: Status
    is_populated: bool
    data_timestamp: datetime | None
    last_refresh_at: datetime | None
    created_at: datetime
    frontier: Frontier
    base_frontier: Frontier
    consecutive_errors: int
    needs_reinit: bool
    stage_id: str
    version: int | None
    open_refresh_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A lake at one moment.

    Args:
        generation: changes with every definition, as `CatalogReader.generation`.
        newest_event_id: 0 if there is no event.
    """

    generation: int
    leadership: Leadership
    newest_event_id: int
    tables: tuple[Standing, ...]


def read(connection: Connection) -> Pulse:
    """The lake as the transaction sees it."""
    own = connection.execute(_LAKE).one()
    return Pulse(
        generation=own.generation,
        leadership=leadership.read(connection),
        newest_event_id=own.newest_event_id,
        tables=tuple(
            Standing(
                id=row.id,
                name=TableName(row.schema_name, row.name),
                status=Status(row.status),
                is_populated=row.is_populated,
                data_timestamp=row.data_timestamp,
                last_refresh_at=row.last_refresh_at,
                created_at=row.created_at,
                frontier=row.frontier,
                base_frontier=row.base_frontier,
                consecutive_errors=row.consecutive_errors,
                needs_reinit=row.needs_reinit,
                stage_id=row.stage_id,
                version=row.version,
                open_refresh_id=row.open_refresh_id,
            )
            for row in connection.execute(_STANDINGS)
        ),
    )
