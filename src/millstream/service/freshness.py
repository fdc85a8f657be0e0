"""How a captured table is doing, by its record and what its database says waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millstream.catalog.attached import (
    MISSING,
    POSITION,
    REACHED_AT,
    RESYNC,
    STALE,
    AttachedDatabase,
    Capture,
    CaptureMode,
    Position,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a database says.

    Args:
        rows: how many changes wait for a table, by its oid, where there is a buffer for them.
        snapshot: of the database as it is; None if that is not known, or it is another database.
    """

    rows: Mapping[int, int] = field(default_factory=dict)
    snapshot: str | None = None


def state_of(capture: Capture) -> tuple[str, str | None]:
    """The state of a captured table, and why it is not followed."""
    details = capture.details
    if capture.version is None:
        return "LOADING", None
    for state, detail in (("MISSING", MISSING), ("STALE", STALE), ("BEHIND", RESYNC)):
        if reason := details.get(detail):
            return state, str(reason)
    return "FOLLOWED", None


def position_of(database: AttachedDatabase, capture: Capture) -> Position | None:
    """Where its mirror is."""
    return capture.details.get(POSITION) or database.position


def age(database: AttachedDatabase, capture: Capture, waiting: Waiting, now: datetime) -> float | None:
    """How many seconds ago its mirror was the table; 0 while nothing has come since."""
    if _is_current(database, capture, waiting):
        return 0.0
    own = capture.details.get(REACHED_AT)
    reached_at = datetime.fromisoformat(own) if own is not None else database.reached_at
    return (now - reached_at).total_seconds() if reached_at is not None else None


def _is_current(database: AttachedDatabase, capture: Capture, waiting: Waiting) -> bool:
    if state_of(capture)[0] != "FOLLOWED" or POSITION in capture.details or waiting.snapshot is None:
        return False
    if database.position is not None and database.position.get("snapshot") == waiting.snapshot:
        return True
    return database.mode is not CaptureMode.WAL and waiting.rows.get(capture.oid) == 0
