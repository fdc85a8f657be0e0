"""What waits in a database to be read: the WAL that its slot retains, and the rows in the buffers of triggers.

After a tick there is little. More means that changes are not read, or that a long transaction holds the WAL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from millstream.catalog.attached import Capture
from millstream.events import Event, EventName
from millstream.postgres.connection import Connection
from millstream.sources.postgres.triggers.buffer_sql import buffer_name
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.uninstall import buffered_rows
from millstream.sources.postgres.wal.slot import slot_state

_SMALLEST_ROW_BYTES = 28
"""A row takes no less in a table's file: so a small file needs no counting."""
_OVER = 0.5
"""A warning is over when this part of its limit is reached again: a backlog around its limit is one occurrence."""
_SIZES = """
SELECT c.relname, pg_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in a database.

    Args:
        slot_name: its slot; None if it has none.
        buffered_rows: by table as `schema.table`, where they can be more than a limit.
    """

    slot_name: str | None = None
    retained_wal_bytes: int = 0
    lag_bytes: int = 0
    buffered_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """What may wait before it is reported."""

    wal_bytes: int
    buffer_rows: int


def read_backlog(
    connection: Connection,
    slot_name: str | None,
    settings: BufferSettings,
    captures: Sequence[Capture],
    limits: BacklogLimits,
) -> Backlog:
    """Read what waits, without counting the rows of small buffers."""
    names = {buffer_name(c.oid): c for c in captures if c.state.buffer is not None}
    sizes: dict[str, int] = {}
    if names:
        sizes = dict(connection.execute(_SIZES, [settings.schema, list(names)]).fetchall())
    counted = [names[name] for name, size in sizes.items() if size > limits.buffer_rows * _SMALLEST_ROW_BYTES * _OVER]
    rows = buffered_rows(connection, settings, [c.oid for c in counted], limits.buffer_rows + 1)
    buffered = {f"{c.schema}.{c.table}": rows.get(c.oid, 0) for c in counted}
    state = slot_state(connection, slot_name) if slot_name is not None else None
    if state is None:
        return Backlog(buffered_rows=buffered)
    return Backlog(slot_name, state.retained_bytes or 0, state.lag_bytes or 0, buffered)


def backlog_events(
    database: str, backlog: Backlog, reported: frozenset[str], limits: BacklogLimits, now: datetime
) -> tuple[list[Event], frozenset[str]]:
    """The events of what has come to exceed its limit; also returns what is reported now.

    Args:
        reported: what was reported before, and was not over then.
    """
    found = [*_slot_warnings(database, backlog, limits, now), *_buffer_warnings(database, backlog, limits, now)]
    exceeding = {w.subject for w in found if w.amount > (w.limit * _OVER if w.subject in reported else w.limit)}
    return [w.event for w in found if w.subject in exceeding - reported], frozenset(exceeding)


@dataclass(frozen=True, slots=True)
class _Warning:
    """An event that is raised if an amount exceeds its limit."""

    subject: str
    amount: int
    limit: int
    event: Event


def _slot_warnings(database: str, backlog: Backlog, limits: BacklogLimits, now: datetime) -> list[_Warning]:
    if backlog.slot_name is None:
        return []
    event = Event.of(
        EventName.SLOT_LAG_WARNING,
        now,
        database=database,
        slot_name=backlog.slot_name,
        retained_wal_bytes=backlog.retained_wal_bytes,
        lag_bytes=backlog.lag_bytes,
        threshold_bytes=limits.wal_bytes,
    )
    amount = max(backlog.retained_wal_bytes, backlog.lag_bytes)
    return [_Warning(backlog.slot_name, amount, limits.wal_bytes, event)]


def _buffer_warnings(database: str, backlog: Backlog, limits: BacklogLimits, now: datetime) -> list[_Warning]:
    name, limit = EventName.BUFFER_GROWTH_WARNING, limits.buffer_rows
    return [
        _Warning(
            table,
            rows,
            limit,
            Event.of(name, now, database=database, source_table=table, buffered_rows=rows, threshold_rows=limit),
        )
        for table, rows in backlog.buffered_rows.items()
    ]
