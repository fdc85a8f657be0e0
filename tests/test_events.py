"""The registry of events, and the one shape that they have."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kits.lake import refused
from millstream.errors import Code
from millstream.events import _COMMON, FIELDS, Event, EventName, Severity, parse_names
from millstream.naming import TableName
from millstream.results import Action

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def test_every_field_is_explained_and_none_hides_a_common_key() -> None:
    used = {name for event in EventName for name in event.fields}
    assert used == FIELDS.keys()
    assert not used & set(_COMMON)
    assert all(event.explanation.endswith(".") for event in EventName)
    assert {event.severity for event in EventName} == set(Severity)


def test_what_the_specification_names_is_there() -> None:
    assert {
        "stale", "auto_suspended", "reinitialize_needed", "slot_lag_warning", "buffer_growth_warning",
        "cdc_transition_complete", "cdc_transition_failed", "refresh_completed", "refresh_failed",
    } <= set(EventName)  # fmt: skip
    assert EventName.CDC_TRANSITION_COMPLETE.fields[:4] == ("source_table", "old_mode", "new_mode", "slot_name")


def test_the_shape() -> None:
    local = NOON.astimezone(timezone(timedelta(hours=2)))
    event = Event.of(
        EventName.REFRESH_COMPLETED, local, TableName.parse("reports.t"), action=Action.FULL, data_timestamp=local
    )
    assert event.dump() == {
        "event_id": None,
        "event": "refresh_completed",
        "severity": "info",
        "time": "2026-03-04T12:00:00+00:00",
        "schema": "reports",
        "stream_table": "t",
        "database": None,
        "refresh_id": None,
        "initiated_by": None,
        "action": "FULL",
        "duration_ms": None,
        "rows_inserted": None,
        "rows_updated": None,
        "rows_deleted": None,
        "data_timestamp": "2026-03-04T12:00:00+00:00",
        "reason": None,
    }
    assert Event.load(json.loads(json.dumps(event.dump()))) == event


@pytest.mark.parametrize("name", EventName)
def test_every_event_is_loaded_as_it_was_dumped(name: EventName) -> None:
    event = Event.of(name, NOON, database="shop", **dict.fromkeys(name.fields, "x"))
    assert Event.load(event.dump()) == event


def test_wrong_events() -> None:
    with pytest.raises(ValueError, match="no field rows"):
        Event.of(EventName.STALE, NOON, rows=1)
    with pytest.raises(ValueError, match="time zone"):
        Event(event=EventName.STALE, time=NOON.replace(tzinfo=None))
    with refused(Code.EVENT_UNKNOWN, "sleepy"):
        parse_names(["stale", "sleepy"])
    assert parse_names([" Stale", "", "leader_lost"]) == {EventName.STALE, EventName.LEADER_LOST}


def test_one_line_for_people() -> None:
    event = Event.of(
        EventName.TABLE_QUARANTINED, NOON, database="shop", source_table="public.orders", reason="two\nlines"
    )
    assert event.text == r'table_quarantined shop.public.orders source_table=public.orders reason="two\nlines"'
    failed = Event.of(EventName.REFRESH_FAILED, NOON, TableName.parse("totals"), duration_ms=1.5, error_code="X")
    assert failed.text == "refresh_failed totals duration_ms=1.5 error_code=X"
