"""What capture records about a database and a captured table, in addition to their identity.

`load` and `dump` translate from and to the catalog's JSON. Default values are not written. An unknown key is refused: a
newer catalog is refused by its version before it is read, so an unknown key means a damaged catalog or a missing
migration, and writing the state again without it could lose e.g. the record of a slot to drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from millstream.catalog.json_keys import refuse_unknown
from millstream.errors import Code, MillstreamError

Position = Mapping[str, Any]
"""How far a database was read: `{"snapshot": pg_snapshot}` by triggers, `{"lsn": ..., "snapshot": ...}` by its WAL."""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """An error as it is recorded, so that it can be raised again later."""

    code: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: MillstreamError) -> RecordedError:
        """The record of an error."""
        return cls(str(error.code), error.message, error.hint)

    @property
    def error(self) -> MillstreamError:
        """The error that was recorded."""
        return MillstreamError(Code[self.code], self.message, hint=self.hint)

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> RecordedError:
        """From the catalog's JSON."""
        return cls(str(stored["code"]), str(stored["message"]), stored["hint"])

    def dump(self) -> dict[str, Any]:
        """For the catalog's JSON."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenView:
    """A view of a database as a tick saw it.

    Args:
        mark: the fingerprint of its text; empty for a view that no longer exists.
        reading: why the tables that its text names may not be read through it.
        naming: why a query may not name it.
    """

    mark: str
    reading: RecordedError | None = None
    naming: RecordedError | None = None

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> SeenView:
        """From the catalog's JSON."""
        reading, naming = stored.get("reading"), stored.get("naming")
        return cls(
            mark=stored["mark"],
            reading=RecordedError.load(reading) if reading is not None else None,
            naming=RecordedError.load(naming) if naming is not None else None,
        )

    def dump(self) -> dict[str, Any]:
        """For the catalog's JSON."""
        return {
            "mark": self.mark,
            "reading": self.reading.dump() if self.reading is not None else None,
            "naming": self.naming.dump() if self.naming is not None else None,
        }


@dataclass(frozen=True, slots=True)
class SlotNames:
    """A replication slot and its publication."""

    slot: str
    publication: str


@dataclass(frozen=True, slots=True)
class WalState:
    """How a database is read from its WAL.

    Args:
        published: a fingerprint of how the publication publishes each captured table, by capture.
    """

    slot: str
    publication: str
    published: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WalLoss:
    """When changes were last missing from the WAL, and how often within a day."""

    at: datetime
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """What capture records about a database.

    Args:
        buffer_schema: the schema that holds its buffers.
        role: the role that captures and serves, and owns all objects that millstream created; None if the database was
            attached before this was recorded.
        numeric: the ranges declared for columns of `numeric`, as `NumericRanges` dumps them.
        views: its views that queries read, as the last tick saw them, by their names in queries.
        wal: how its WAL is read; None while triggers capture it.
        transition: a switch to the WAL that is under way, as `Transition` dumps it.
        triggers_installed: a snapshot by which triggers were in place again, while the WAL is still read.
        unread_slot: a slot that is no longer read and not dropped yet.
        hindered: why it stays on triggers, or returned to them.
        has_orphans: whether tables that are no longer captured may still have buffers and triggers.
        lost: how often and when changes were missing from its WAL.
        mark: the mark that the last tick that read changes from buffers wrote into the database.
        server_started: when its server had started, as a tick saw it.
        is_guarded: whether it refuses DDL that changes captured columns.
        refused_writes: what owners have to run before applications can write to their tables again, by table.
    """

    buffer_schema: str = ""
    role: str | None = None
    numeric: tuple[tuple[str, str, str, str], ...] = ()
    views: Mapping[str, SeenView] = field(default_factory=dict)
    wal: WalState | None = None
    transition: Mapping[str, Any] | None = None
    triggers_installed: str | None = None
    unread_slot: SlotNames | None = None
    hindered: str | None = None
    has_orphans: bool = False
    lost: WalLoss | None = None
    mark: str | None = None
    server_started: str | None = None
    is_guarded: bool = False
    refused_writes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> DatabaseState:
        """From the catalog's JSON.

        Raises:
            MillstreamError: CATALOG_FAILED for a key that is not known.
        """
        refuse_unknown("an attached database", stored, _DATABASE_KEYS)
        wal, left, lost = stored.get("wal"), stored.get("left"), stored.get("lost")
        return cls(
            buffer_schema=stored.get("buffer_schema", ""),
            role=stored.get("role"),
            numeric=tuple((schema, table, column, type_) for schema, table, column, type_ in stored.get("numeric", ())),
            views={name: SeenView.load(view) for name, view in stored.get("views", {}).items()},
            wal=WalState(wal["slot"], wal["publication"], dict(wal["published"])) if wal is not None else None,
            transition=stored.get("transition"),
            triggers_installed=stored.get("installed"),
            unread_slot=SlotNames(left["slot"], left["publication"]) if left is not None else None,
            hindered=stored.get("hindered"),
            has_orphans=bool(stored.get("leftovers")),
            lost=WalLoss(datetime.fromisoformat(lost["at"]), int(lost["times"])) if lost is not None else None,
            mark=stored.get("mark"),
            server_started=stored.get("started"),
            is_guarded=bool(stored.get("guarded")),
            refused_writes=dict(stored.get("refused_writes", {})),
        )

    def dump(self) -> dict[str, Any]:
        """For the catalog's JSON."""
        wal, left, lost = self.wal, self.unread_slot, self.lost
        return _without_defaults(
            {
                "buffer_schema": self.buffer_schema,
                "role": self.role,
                "numeric": [list(declared) for declared in self.numeric],
                "views": {name: view.dump() for name, view in self.views.items()},
                "wal": wal and {"slot": wal.slot, "publication": wal.publication, "published": dict(wal.published)},
                "transition": dict(self.transition) if self.transition is not None else None,
                "installed": self.triggers_installed,
                "left": left and {"slot": left.slot, "publication": left.publication},
                "hindered": self.hindered,
                "leftovers": self.has_orphans,
                "lost": lost and {"at": lost.at.isoformat(), "times": lost.times},
                "mark": self.mark,
                "started": self.server_started,
                "guarded": self.is_guarded,
                "refused_writes": dict(self.refused_writes),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """The buffer in which triggers record a table's changes.

    Args:
        schema: the buffer's schema.
        columns: the columns whose values it holds.
        by_row: whether triggers fire for each row.
        leaves: the partitions that have their own triggers.
        is_always: whether the triggers fire in every session.
        state: a fingerprint of the triggers.
        made_for: the fingerprint of the table's columns for which it was created, if the capture has another one.
    """

    schema: str
    columns: tuple[str, ...]
    by_row: bool
    leaves: tuple[int, ...]
    is_always: bool
    state: str
    made_for: str | None = None

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> BufferState:
        """From the catalog's JSON."""
        return cls(
            schema=stored["schema"],
            columns=tuple(stored["columns"]),
            by_row=stored["by_row"],
            leaves=tuple(stored["leaves"]),
            is_always=stored["is_always"],
            state=stored["state"],
            made_for=stored.get("made_for"),
        )

    def dump(self) -> dict[str, Any]:
        """For the catalog's JSON."""
        made_for = {"made_for": self.made_for} if self.made_for is not None else {}
        return {
            "schema": self.schema,
            "columns": list(self.columns),
            "by_row": self.by_row,
            "leaves": list(self.leaves),
            "is_always": self.is_always,
            "state": self.state,
            **made_for,
        }


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a table could not be brought forward with the others, and until when ticks for others do not retry it."""

    error: RecordedError
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureState:
    """What capture records about a captured table.

    Args:
        stale: why its mirror is no longer brought forward, and the table must be captured again.
        missing: why its mirror is no longer brought forward: the table no longer exists.
        resync: why its mirror must be compared with the table.
        quarantine: why it could not be brought forward with the others.
        position: the position of its mirror, if that is not the database's.
        reached_at: when its mirror reached that position, if known.
        buffer: where triggers record its changes.
        is_whole: nothing records its changes (a foreign table or materialized view): it is compared with its mirror
            each time it is read.
        not_null: its columns that are never NULL.
    """

    stale: str | None = None
    missing: str | None = None
    resync: str | None = None
    quarantine: Quarantine | None = None
    position: Position | None = None
    reached_at: datetime | None = None
    buffer: BufferState | None = None
    is_whole: bool = False
    not_null: tuple[str, ...] = ()

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> CaptureState:
        """From the catalog's JSON.

        Raises:
            MillstreamError: CATALOG_FAILED for a key that is not known.
        """
        refuse_unknown("a captured table", stored, _CAPTURE_KEYS)
        behind, reached_at, buffer = stored.get("behind"), stored.get("reached_at"), stored.get("buffer")
        quarantine = None
        if behind is not None:
            quarantine = Quarantine(RecordedError.load(behind), datetime.fromisoformat(behind["until"]))
        return cls(
            stale=stored.get("stale"),
            missing=stored.get("missing"),
            resync=stored.get("resync"),
            quarantine=quarantine,
            position=stored.get("position"),
            reached_at=datetime.fromisoformat(reached_at) if reached_at is not None else None,
            buffer=BufferState.load(buffer) if buffer is not None else None,
            is_whole=bool(stored.get("whole")),
            not_null=tuple(stored.get("not_null", ())),
        )

    def dump(self) -> dict[str, Any]:
        """For the catalog's JSON."""
        behind = self.quarantine
        return _without_defaults(
            {
                "stale": self.stale,
                "missing": self.missing,
                "resync": self.resync,
                "behind": behind and {**behind.error.dump(), "until": behind.until.isoformat()},
                "position": dict(self.position) if self.position is not None else None,
                "reached_at": self.reached_at and self.reached_at.isoformat(),
                "buffer": self.buffer and self.buffer.dump(),
                "whole": self.is_whole,
                "not_null": list(self.not_null),
            }
        )


_DATABASE_KEYS = frozenset(
    {
        *("buffer_schema", "role", "numeric", "views", "wal", "transition", "installed", "left", "hindered"),
        *("leftovers", "lost", "mark", "started", "guarded", "refused_writes"),
    }
)
_CAPTURE_KEYS = frozenset(
    ("stale", "missing", "resync", "behind", "position", "reached_at", "buffer", "whole", "not_null")
)


def _without_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """All values except the defaults of `load`: None, False and empty values."""
    return {key: value for key, value in stored.items() if value not in (None, False, "", [], {})}
