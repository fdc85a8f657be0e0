"""The registry of events: what a lake reports about itself, in the catalog and to every alert sink.

`millstream.testing.reference_docs` generates `docs/events.md` from this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from millstream.errors import Code, MillstreamError
from millstream.naming import TableName


class Severity(StrEnum):
    """How urgent an event is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_REFRESH = ("refresh_id", "initiated_by", "action", "duration_ms")
_TRANSITION = ("source_table", "old_mode", "new_mode", "slot_name")
_LEADER = ("leader", "host", "pid", "version", "epoch")


class EventName(StrEnum):
    """The names of all events, with their severity, own fields and meaning."""

    severity: Severity
    fields: tuple[str, ...]
    explanation: str

    def __new__(cls, value: str, severity: Severity, fields: tuple[str, ...], explanation: str) -> EventName:
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity, member.fields, member.explanation = severity, fields, explanation
        return member

    # Refreshes
    REFRESH_COMPLETED = (
        "refresh_completed",
        Severity.INFO,
        (*_REFRESH, "rows_inserted", "rows_updated", "rows_deleted", "data_timestamp", "reason"),
        "A refresh succeeded and did more than look for changes.",
    )
    REFRESH_FAILED = (
        "refresh_failed",
        Severity.ERROR,
        (*_REFRESH, "error_code", "error_message", "consecutive_errors"),
        "A refresh failed; the old contents are still readable.",
    )
    STALE = (
        "stale",
        Severity.WARNING,
        ("staleness_secs", "schedule", "data_timestamp"),
        "The contents are older than twice the schedule.",
    )
    SCHEDULE_MISSED = (
        "schedule_missed",
        Severity.WARNING,
        ("schedule", "freshness_deadline", "lateness_secs"),
        "A refresh ended after its deadline: the machine does not keep up with the schedule.",
    )
    AUTO_SUSPENDED = (
        "auto_suspended",
        Severity.ERROR,
        ("consecutive_errors", "error_code", "error_message"),
        "Too many refreshes failed in a row: the stream table is in ERROR and is no longer refreshed automatically.",
    )
    REINITIALIZE_NEEDED = (
        "reinitialize_needed",
        Severity.WARNING,
        ("source_table", "reason"),
        "A source was altered, replaced or dropped: the next refresh reinitialises the stream table, or fails with the "
        "reason.",
    )

    # Capture
    SLOT_LAG_WARNING = (
        "slot_lag_warning",
        Severity.WARNING,
        ("slot_name", "retained_wal_bytes", "lag_bytes", "threshold_bytes"),
        "A replication slot retains, or lags behind by, more WAL than slot_lag_alert_bytes.",
    )
    BUFFER_GROWTH_WARNING = (
        "buffer_growth_warning",
        Severity.WARNING,
        ("source_table", "buffered_rows", "threshold_rows"),
        "The buffer of a captured table keeps growing: its changes are not being read.",
    )
    CDC_TRANSITION_STARTED = (
        "cdc_transition_started",
        Severity.INFO,
        _TRANSITION,
        "A database has begun to switch to another capture mode.",
    )
    CDC_TRANSITION_COMPLETE = (
        "cdc_transition_complete",
        Severity.INFO,
        (*_TRANSITION, "reason"),
        "A database has switched to another capture mode; the reason is null if that was requested.",
    )
    CDC_TRANSITION_FAILED = (
        "cdc_transition_failed",
        Severity.WARNING,
        (*_TRANSITION, "reason"),
        "A switch to another capture mode failed; the old mode stays.",
    )
    TABLE_QUARANTINED = (
        "table_quarantined",
        Severity.WARNING,
        ("source_table", "reason"),
        "A captured table cannot be brought forward; its dependents fail until it can. It is retried by itself.",
    )

    # The process that refreshes
    LEADER_ELECTED = ("leader_elected", Severity.INFO, _LEADER, "A process has become the leader of the lake.")
    LEADER_LOST = (
        "leader_lost",
        Severity.WARNING,
        _LEADER,
        "A leader was replaced before it released its leadership: it was killed, or did not answer.",
    )
    CANCEL_REQUESTED = (
        "cancel_requested",
        Severity.INFO,
        ("host", "pid"),
        "A process asked for the running refresh of a stream table to be cancelled.",
    )
    DAEMON_PAUSED = ("daemon_paused", Severity.WARNING, (), "Automatic refreshes of all stream tables were paused.")
    DAEMON_RESUMED = ("daemon_resumed", Severity.INFO, (), "Automatic refreshes were resumed.")

    @classmethod
    def parse(cls, text: str) -> EventName:
        """The event of a name, in any case.

        Raises:
            MillstreamError: EVENT_UNKNOWN.
        """
        found = next((event for event in cls if event == text.strip().lower()), None)
        if found is None:
            hint = "the events are " + ", ".join(cls)
            raise MillstreamError(Code.EVENT_UNKNOWN, f"there is no event {text.strip()!r}", hint=hint)
        return found


FIELDS: Mapping[str, str] = {
    "refresh_id": "The number of the refresh in `refresh_history`.",
    "initiated_by": "`INITIAL`, `MANUAL` or `SCHEDULER`.",
    "action": "What the refresh did, or was about to do.",
    "duration_ms": "How long it took.",
    "rows_inserted": "Rows that were added to the stream table.",
    "rows_updated": "Rows that were changed in it.",
    "rows_deleted": "Rows that were removed from it.",
    "data_timestamp": "The time that the contents stand for.",
    "reason": "Why; for a refresh one of the [reasons](reasons.md).",
    "error_code": "The code of the [error](errors.md).",
    "error_message": "Its message.",
    "consecutive_errors": "How many refreshes have failed in a row.",
    "staleness_secs": "Seconds since the data timestamp.",
    "schedule": "The schedule as it was written.",
    "freshness_deadline": "When the refresh had to be finished.",
    "lateness_secs": "By how many seconds it was late.",
    "source_table": "The table of the database as `schema.table`; null if all are meant.",
    "slot_name": "The replication slot of the database.",
    "retained_wal_bytes": "How much WAL the server keeps for the slot.",
    "lag_bytes": "How much WAL was written since the position that was read.",
    "threshold_bytes": "The limit that was exceeded.",
    "buffered_rows": "Changes that wait in the buffer.",
    "threshold_rows": "The limit that was exceeded.",
    "old_mode": "The capture mode before: `TRIGGER`, `TRANSITIONING` or `WAL`.",
    "new_mode": "The capture mode now.",
    "leader": "The id of the process.",
    "host": "The machine it runs on.",
    "pid": "Its process id there.",
    "version": "Its version of millstream.",
    "epoch": "The number of its leadership; it grows with each change of leader.",
}
"""What the fields say."""

_COMMON = ("event_id", "event", "severity", "time", "schema", "stream_table", "database")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event.

    Args:
        stream_table, schema: the stream table it is about, if it is about one.
        database: the attached database it is about, if it is about one.
        fields: the event's own fields, as JSON can carry them; one that is not given is null.
        event_id: its number in the catalog, in the order of recording; None before it is recorded.
    """

    event: EventName
    time: datetime
    stream_table: str | None = None
    schema: str | None = None
    database: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    event_id: int | None = None

    def __post_init__(self) -> None:
        if self.time.tzinfo is None:
            raise ValueError(f"a time without a time zone: {self.time}")
        if unknown := self.fields.keys() - set(self.event.fields):
            raise ValueError(f"{self.event} has no field {', '.join(sorted(unknown))}")
        object.__setattr__(self, "fields", {name: self.fields.get(name) for name in self.event.fields})

    @classmethod
    def of(
        cls,
        event: EventName,
        time: datetime,
        table: TableName | None = None,
        *,
        database: str | None = None,
        **fields: object,
    ) -> Self:
        """An event about a stream table, a database or the lake; times and enums in `fields` become texts."""
        return cls(
            event=event,
            time=time.astimezone(UTC),
            stream_table=table.name if table is not None else None,
            schema=table.schema if table is not None else None,
            database=database,
            fields={name: _plain(value) for name, value in fields.items()},
        )

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return self.event.severity

    @property
    def subject(self) -> str:
        """What it is about, for people; empty if it is about the lake."""
        table = str(TableName(self.schema, self.stream_table)) if self.schema and self.stream_table else ""
        place = ".".join(filter(None, (self.database, self.fields.get("source_table"))))
        return " ".join(filter(None, (table, place)))

    @property
    def text(self) -> str:
        """The event in one line for people: its name, what it is about, and the fields that have a value."""
        said = [f"{name}={_shown(value)}" for name, value in self.fields.items() if value is not None]
        return " ".join(filter(None, (str(self.event), self.subject, *said)))

    def dump(self) -> dict[str, Any]:
        """The event as JSON: the same keys for every event, followed by its own fields."""
        return {
            "event_id": self.event_id,
            "event": str(self.event),
            "severity": str(self.severity),
            "time": self.time.astimezone(UTC).isoformat(),
            "schema": self.schema,
            "stream_table": self.stream_table,
            "database": self.database,
            **self.fields,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """An event from its JSON.

        Raises:
            MillstreamError: EVENT_UNKNOWN; CATALOG_FAILED for an unknown key.
        """
        event = EventName.parse(data["event"])
        own = {name: value for name, value in data.items() if name not in _COMMON}
        if unknown := own.keys() - set(event.fields):
            raise MillstreamError(
                Code.CATALOG_FAILED,
                f"the event {event} has the unknown fields {', '.join(sorted(unknown))}",
                hint="upgrade millstream, or restore the catalog if it was edited",
            )
        return cls(
            event=event,
            time=datetime.fromisoformat(data["time"]),
            stream_table=data.get("stream_table"),
            schema=data.get("schema"),
            database=data.get("database"),
            fields=own,
            event_id=data.get("event_id"),
        )


def parse_names(names: Iterable[str]) -> frozenset[EventName]:
    """Events from their names; empty texts are skipped.

    Raises:
        MillstreamError: EVENT_UNKNOWN.
    """
    return frozenset(EventName.parse(name) for name in names if name.strip())


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value) if isinstance(value, str) else value


def _shown(value: object) -> str:
    """A value on one line, quoted if it has spaces."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text, ensure_ascii=False)
