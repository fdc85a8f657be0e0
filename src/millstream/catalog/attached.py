"""The catalog's records of attached PostgreSQL databases."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from millstream.catalog.capture_state import CaptureState, DatabaseState, Position
from millstream.catalog.serving_details import ServingDetails
from millstream.naming import attached_name


class CaptureMode(StrEnum):
    """How the changes of a database are captured; the same for all its tables."""

    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"
    WAL = "WAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTick:
    """A tick that was begun: the position it brings the mirrors to, for recovery after a crash."""

    id: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDatabase:
    """A PostgreSQL database, and how far its captured tables were read into their mirrors: one position for all.

    Args:
        address: a reference without secrets.
        cdc: the requested capture: `auto`, `trigger` or `wal`; `mode` is the actual one.
        system, timeline, database, database_oid: its identity when it was last read.
        position: None before the first table is captured.
        last_tick: the highest number of a tick; each is one transaction number in the mirrors.
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
    state: DatabaseState = field(default_factory=DatabaseState)

    @property
    def hindrance(self) -> str | None:
        """Why triggers capture the database although its WAL should be read."""
        if self.cdc == "trigger" or self.mode is not CaptureMode.TRIGGER:
            return None
        return self.state.hindered

    def mirror_position(self, capture: Capture) -> Position | None:
        """The position of a captured table's mirror: that of the others, or where it was loaded or quarantined."""
        return capture.state.position or self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured table: its captured columns, its identity, and where its mirror is stored.

    Args:
        id: the application id of the mirror's transactions.
        columns: name, PostgreSQL type and Spark type of each captured column.
        shape, filenodes: the fingerprints of `Relation` when it was last checked.
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
    state: CaptureState = field(default_factory=CaptureState)

    @property
    def name(self) -> str:
        """Its name in queries."""
        return str(attached_name(self.database, self.schema, self.table))

    @property
    def is_whole(self) -> bool:
        """Whether nothing records its changes: a foreign table or materialized view."""
        return self.state.is_whole

    @property
    def is_kept(self) -> bool:
        """Whether its mirror is loaded and brought forward."""
        return self.version is not None and not self.state.stale and not self.state.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A stream table's result as a real table of an attached database."""

    table_id: str
    database: str
    schema: str
    table: str
    details: ServingDetails

    @property
    def name(self) -> str:
        """Its name in queries."""
        return str(attached_name(self.database, self.schema, self.table))
