"""`millstream events`."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from kits.cli_stand_in import NOON, Call, StandIn
from millstream.cli import events_command
from millstream.events import Event, EventName

PAST = '2025-03-04 12:00:00Z  error    refresh_failed reports.totals error_message="disk full"\n'
ELECTED = [
    dataclasses.replace(Event.of(EventName.LEADER_ELECTED, NOON, pid=pid), event_id=7 + pid) for pid in range(1, 4)
]


def asked(lake: StandIn) -> list[tuple[object, ...]]:
    return [c[1:] for c in lake.calls if c[0] == "events"]


def test_text(lake: StandIn, call: Call) -> None:
    result = call("events")
    assert (result.code, result.out) == (0, PAST)
    assert asked(lake)[-1] == (None, None, (), 20)


def test_json_lines(lake: StandIn, call: Call) -> None:
    result = call("events", "--json")
    (line,) = result.out.splitlines()
    assert json.loads(line)["error_message"] == "disk full"
    assert json.loads(line)["event_id"] == 7


def test_which(lake: StandIn, call: Call) -> None:
    call("events", "--since", "1h30m", "--event", "stale", "--event", "refresh_failed", "--limit", "5")
    after_id, since, names, limit = asked(lake)[-1]
    assert (after_id, names, limit) == (None, ("stale", "refresh_failed"), 5)
    assert isinstance(since, datetime)
    assert abs(datetime.now(UTC) - timedelta(minutes=90) - since) < timedelta(minutes=1)


def test_nothing_happened(lake: StandIn, call: Call) -> None:
    result = call("events", "--limit", "0")
    assert (result.code, result.out) == (0, "")
    assert "There are no events." in result.err


@pytest.mark.parametrize("since", ["soon", "CALCULATED", "0 6 * * *"])
def test_wrong_since(lake: StandIn, call: Call, since: str) -> None:
    result = call("events", "--since", since)
    assert result.code == 1
    assert "--since 30m" in result.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_following_ends_with_an_interrupt_and_success(
    lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.setattr(events_command, "POLL_SECONDS", 0)
    lake.happened = list(ELECTED)
    result = call("events", "--follow", *form)
    assert result.code == 0
    assert result.err == ""
    assert len(result.out.splitlines()) == 4
    assert [c[0] for c in asked(lake)[2:]] == [7, 8, 9, 10], "each look asks for what came after the last event"
