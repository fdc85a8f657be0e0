"""The events that follow from a change of a database's record. Pure.

They are recorded in the transaction that changes the record, so each is raised exactly once: not at every look, and
neither lost nor repeated if the process is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.reasons import Reason

_UNWANTED = "the switch is no longer wanted"


@dataclass(frozen=True, slots=True)
class Reader:
    """A stream table, and the fingerprint of the source that it was compiled with."""

    name: TableName
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """How a table or view of a database was altered; `mark` is the new fingerprint of a view."""

    source: str
    how: str
    mark: str | None = None


def mode_events(before: AttachedDatabase, after: AttachedDatabase, now: datetime) -> list[Event]:
    """The event of a change of the capture mode, which is the same for all tables of a database."""
    if before.mode is after.mode:
        return []
    fields = {"old_mode": before.mode, "new_mode": after.mode, "slot_name": _slot(after) or _slot(before)}
    reason = after.hindrance
    match before.mode, after.mode:
        case _, CaptureMode.TRANSITIONING:
            return [Event.of(EventName.CDC_TRANSITION_STARTED, now, None, database=after.name, **fields)]
        case CaptureMode.TRANSITIONING, CaptureMode.TRIGGER:
            event, reason = EventName.CDC_TRANSITION_FAILED, reason or _UNWANTED
        case _:
            event = EventName.CDC_TRANSITION_COMPLETE
    return [Event.of(event, now, None, database=after.name, reason=reason, **fields)]


def quarantine_events(before: Mapping[str, Capture], after: Iterable[Capture], now: datetime) -> list[Event]:
    """The events of tables that are quarantined from now on, or for another reason."""
    events: list[Event] = []
    for capture in after:
        known = before.get(capture.id)
        old = known.state.quarantine if known is not None else None
        new = capture.state.quarantine
        if new is not None and (old is None or old.error.code != new.error.code):
            table, reason = f"{capture.schema}.{capture.table}", f"{new.error.code}: {new.error.message}"
            event = EventName.TABLE_QUARANTINED
            events.append(Event.of(event, now, database=capture.database, source_table=table, reason=reason))
    return events


def source_changes(
    before: AttachedDatabase, after: AttachedDatabase, old: Mapping[str, Capture], new: Iterable[Capture]
) -> list[SourceChange]:
    """The tables and views of a database that were altered, replaced or dropped, so that their readers must adapt."""
    changes: list[SourceChange] = []
    for capture in new:
        known = old.get(capture.id)
        was = (known.state.stale, known.state.missing) if known is not None else (None, None)
        how = capture.state.missing or capture.state.stale
        if how is not None and (capture.state.stale, capture.state.missing) != was:
            changes.append(SourceChange(capture.name, how))
    for name, view in after.state.views.items():
        seen = before.state.views.get(name)
        if seen is not None and seen.mark != view.mark:
            changes.append(SourceChange(name, "was replaced" if view.mark else "was dropped", view.mark))
    return changes


def reinitialize_events(
    changes: Sequence[SourceChange], readers: Mapping[str, Sequence[Reader]], now: datetime
) -> list[Event]:
    """An event for each stream table that reads an altered source, unless it was compiled with the source as it is.

    Args:
        readers: the stream tables that read each source, by its name in queries.
    """
    return [
        _needed(reader.name, change, now)
        for change in changes
        for reader in readers.get(change.source, ())
        if change.mark is None or change.mark != reader.fingerprint
    ]


def _needed(reader: TableName, change: SourceChange, now: datetime) -> Event:
    database, schema, table = TableName.parse(change.source).parts
    what = change.how if change.source.partition(".")[2] in change.how else f"{change.source} {change.how}"
    return Event.of(
        EventName.REINITIALIZE_NEEDED,
        now,
        reader,
        database=database,
        source_table=f"{schema}.{table}",
        reason=f"{Reason.SOURCE_CHANGED}: {what}",
    )


def _slot(database: AttachedDatabase) -> str | None:
    state = database.state
    if state.wal is not None:
        return state.wal.slot
    return str(state.transition["slot"]) if state.transition is not None else None
