"""Events, under ids that grow in the order of commits.

A follower asks for the ids above the last one it saw: so writers lock the lake's row before they take ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.schema import events
from millstream.catalog.stores import lake
from millstream.catalog.stores.storable import storable
from millstream.events import Event, EventName

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

_INSERT = sa.insert(events).returning(events.c.event_id, sort_by_parameter_order=True)


def add(connection: Connection, items: Sequence[Event]) -> tuple[Event, ...]:
    """Record events, and return them with their ids."""
    if not items:
        return ()
    lake.lock(connection)
    ids = connection.execute(_INSERT, [_values(e) for e in items]).scalars().all()
    return tuple(replace(e, event_id=event_id) for e, event_id in zip(items, ids, strict=True))


def read(
    connection: Connection,
    after_id: int | None,
    since: datetime | None,
    names: Collection[EventName] | None,
    limit: int | None,
) -> tuple[Event, ...]:
    """Events in the order of recording: the first ones after an id, or else the last ones."""
    chosen = sa.select(events).limit(limit)
    if after_id is not None:
        chosen = chosen.where(events.c.event_id > after_id)
    if since is not None:
        chosen = chosen.where(events.c.at >= since)
    if names is not None:
        chosen = chosen.where(events.c.event.in_(sorted(names)))
    order = events.c.event_id.desc() if after_id is None else events.c.event_id
    found = [_event(row) for row in connection.execute(chosen.order_by(order))]
    return tuple(found[::-1] if after_id is None else found)


def prune(connection: Connection, before: datetime) -> int:
    """Delete the events of before a time."""
    return connection.execute(sa.delete(events).where(events.c.at < before)).rowcount


def _values(event: Event) -> dict[str, Any]:
    return {
        "at": event.time,
        "event": event.event,
        "severity": event.severity,
        "stream_table": event.stream_table,
        "schema_name": event.schema,
        "database": event.database,
        "fields": {k: storable(v) if isinstance(v, str) else v for k, v in event.fields.items() if v is not None},
    }


def _event(row: Row[Any]) -> Event:
    common = {"event_id": row.event_id, "event": row.event, "time": row.at.isoformat(), "database": row.database}
    return Event.load({**row.fields, **common, "stream_table": row.stream_table, "schema": row.schema_name})
