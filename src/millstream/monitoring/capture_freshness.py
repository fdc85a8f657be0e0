"""The state and freshness of a captured table, from its record and the pending changes in its database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode


@dataclass(frozen=True, slots=True)
class Waiting:
    """The changes pending in a database.

    Args:
        rows: the number of pending changes of each table that has a buffer, by OID.
        snapshot: the database's current snapshot; None if it is unknown, or the connection leads to another database.
    """

    rows: Mapping[int, int] = field(default_factory=dict)
    snapshot: str | None = None


def state_of(capture: Capture) -> tuple[str, str | None]:
    """The state of a captured table, and why it is not followed."""
    if capture.version is None:
        return "LOADING", None
    found = capture.state
    for state, reason in (("MISSING", found.missing), ("STALE", found.stale), ("BEHIND", found.resync)):
        if reason:
            return state, reason
    return "FOLLOWED", None


def age(database: AttachedDatabase, capture: Capture, waiting: Waiting, now: datetime) -> float | None:
    """How many seconds ago the mirror last equalled the table; 0 if nothing was written since."""
    if _is_current(database, capture, waiting):
        return 0.0
    reached_at = capture.state.reached_at or database.reached_at
    return (now - reached_at).total_seconds() if reached_at is not None else None


def _is_current(database: AttachedDatabase, capture: Capture, waiting: Waiting) -> bool:
    if state_of(capture)[0] != "FOLLOWED" or capture.state.position is not None or waiting.snapshot is None:
        return False
    if database.position is not None and database.position.get("snapshot") == waiting.snapshot:
        return True
    return database.mode is not CaptureMode.WAL and waiting.rows.get(capture.oid) == 0
