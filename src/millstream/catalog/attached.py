"""The catalog's records of attached PostgreSQL databases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from millstream.naming import attached_name

STALE = "stale"
"""A detail of a capture and of its lake object: why it is no longer brought forward, and must be captured anew."""
MISSING = "missing"
"""A detail of a capture: why it is no longer brought forward: the table is gone."""
RESYNC = "resync"
"""A detail of a capture: why its mirror is to be compared with the table."""
BEHIND = "behind"
"""A detail of a capture: why it could not be brought forward with the others, and until when that is not tried again
for the sake of others."""
POSITION = "position"
"""A detail of a capture: where its mirror is, if not where the database is said to be."""
REACHED_AT = "reached_at"
"""A detail of a capture: when its mirror was there, where that is known."""
VIEWS = "views"
"""A detail of a database: its views that queries read, as the last tick saw them; see `SeenView`."""

LEFT = "left"
"""A detail of a database: a slot that is no longer read, and not yet dropped."""

HINDERED = "hindered"
"""A detail of a database: why it stays on triggers, or came back to them."""

LEFTOVERS = "leftovers"
"""A detail of a database: tables that are no longer captured may still have buffers and triggers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenView:
    """A view of a database as a tick saw it.

    Args:
        mark: the fingerprint of its text; empty for a view that is gone.
        reading: why what its text names may not be read through it: code, message and hint of the error.
        naming: why a query may not name it, the same way.
    """

    mark: str
    reading: Mapping[str, str | None] | None = None
    naming: Mapping[str, str | None] | None = None


class CaptureMode(StrEnum):
    """How the changes of a database are captured, all its tables alike."""

    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"
    WAL = "WAL"


Position = Mapping[str, Any]
"""How far a database was read: `{"snapshot": pg_snapshot}` by triggers, `{"lsn": ..., "snapshot": ...}` by its WAL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTick:
    """A tick that was begun: the position it brings the mirrors to, so that a crash can be repaired."""

    id: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDatabase:
    """A PostgreSQL database, and how far its captured tables were landed: one position for all of them.

    Args:
        address: a reference without secrets.
        cdc: what the user wants: `auto`, `trigger` or `wal`; `mode` is what is.
        system, timeline, database, database_oid: its identity when it was read last.
        position: None before the first table is captured.
        last_tick: the highest number a tick has had; each is one transaction number in the mirrors.
    """

    name: str
    address: str
    cdc: str
    mode: CaptureMode = CaptureMode.TRIGGER
    system: int
    timeline: int
    database: str
    database_oid: int
    position: Position | None = None
    reached_at: datetime | None = None
    last_tick: int = 0
    open_tick: OpenTick | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seen_views(self) -> dict[str, SeenView]:
        """Its views that queries read, as the last tick saw them, by their names in queries."""
        return {name: SeenView(**seen) for name, seen in self.details.get(VIEWS, {}).items()}

    @property
    def hindrance(self) -> str | None:
        """Why triggers capture it where its WAL would be read."""
        if self.cdc == "trigger" or self.mode is not CaptureMode.TRIGGER:
            return None
        return self.details.get(HINDERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured table: which columns of it, as what it was known, and where its mirror lies.

    Args:
        id: the application id of the mirror's transactions.
        columns: name, PostgreSQL type and Spark type of each captured column.
        shape, filenodes: the fingerprints of `Relation` when it was looked at last.
        version: the mirror's version at the database's position; None before it is loaded.
    """

    id: str
    database: str
    schema: str
    table: str
    oid: int
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]
    shape: str
    filenodes: str
    path: str
    version: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in queries."""
        return str(attached_name(self.database, self.schema, self.table))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A stream table's result as a real table of an attached database."""

    table_id: str
    database: str
    schema: str
    table: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in queries."""
        return str(attached_name(self.database, self.schema, self.table))
