"""The dispatcher: a slow, failing or full sink never delays whoever reports an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kits.lake import refused
from millstream.alerts.dispatch import Dispatcher, sinks_of
from millstream.catalog import Catalog
from millstream.errors import Code
from millstream.events import Event, EventName
from millstream.postgres.pool import ConnectionPool
from millstream.settings import Settings

if TYPE_CHECKING:
    import pytest

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
STALE = Event.of(EventName.STALE, NOON)
LOST = Event.of(EventName.LEADER_LOST, NOON)


class Sink:
    """Waits for `gate` before it takes a batch."""

    failures = 0

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.got: list[Event] = []
        self.busy, self.gate, self.error = threading.Event(), threading.Event(), error
        if is_open:
            self.gate.set()

    def send(self, events: Sequence[Event]) -> None:
        self.busy.set()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.got += events


def test_all_sinks_get_all_events_in_order() -> None:
    first, second = Sink(), Sink()
    with Dispatcher([first, second]) as dispatcher:
        for _ in range(10):
            dispatcher.put([STALE, LOST])
    assert first.got == second.got == [STALE, LOST] * 10


def test_only_chosen_events() -> None:
    sink = Sink()
    with Dispatcher([sink], names={EventName.LEADER_LOST}) as dispatcher:
        dispatcher.put([STALE, LOST, STALE])
    assert sink.got == [LOST]
    assert dispatcher.dropped == 0


def test_a_slow_sink_delays_nobody_and_the_queue_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(is_open=False)
    dispatcher = Dispatcher([sink], capacity=5)
    dispatcher.put([STALE])
    assert sink.busy.wait(10)
    started = time.monotonic()
    dispatcher.put([LOST] * 4)
    dispatcher.put([LOST] * 4)
    assert time.monotonic() - started < 1
    assert dispatcher.dropped == 3
    assert "dropped 3 events" in caplog.text
    assert not dispatcher.close(timeout=0.05), "it does not wait for ever"
    sink.gate.set()
    assert dispatcher.close()
    assert sink.got == [STALE] + [LOST] * 5
    dispatcher.put([STALE])
    assert dispatcher.dropped == 4


def test_a_sink_that_raises_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    broken, sink = Sink(error=RuntimeError("ouch")), Sink()
    with Dispatcher([broken, sink]) as dispatcher:
        dispatcher.put([STALE])
        assert sink.busy.wait(10)
        dispatcher.put([LOST])
    assert sink.got == [STALE, LOST]
    assert "ouch" in caplog.text


def test_sinks_by_settings(tmp_path: Path) -> None:
    with Catalog.open(tmp_path) as catalog:
        given = Settings(alert_webhook_url="http://localhost:1/", alert_command="true")
        names = [type(s).__name__ for s in sinks_of(given, catalog, ConnectionPool())]
        assert names == ["LogSink", "WebhookSink", "CommandSink", "NotifySink"]
        assert len(sinks_of(Settings(alert_notify=False), catalog, ConnectionPool())) == 1


def test_the_filter_of_the_settings() -> None:
    assert Settings().alerted_events is None
    assert Settings(alert_events="stale, refresh_failed").alerted_events == {"stale", "refresh_failed"}
    with refused(Code.SETTING_INVALID, "alert_events"):
        Settings(alert_events="sleepy")
