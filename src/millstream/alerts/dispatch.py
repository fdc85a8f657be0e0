"""Hands events to sinks in a thread of its own: a slow sink never delays a refresh."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from millstream.alerts.command import CommandSink
from millstream.alerts.log_sink import LogSink
from millstream.alerts.notify import NotifySink
from millstream.alerts.sink import AlertSink
from millstream.alerts.webhook import WebhookSink
from millstream.catalog import Catalog
from millstream.events import Event, EventName
from millstream.postgres.pool import ConnectionPool
from millstream.settings import Settings

_CAPACITY = 10_000
_BATCH = 500

log = logging.getLogger(__name__)


class Dispatcher:
    """A bounded queue of events and the thread that empties it.

    Args:
        names: the events that are sent; None for all of them.
        capacity: how many events may wait; further ones are dropped, which is counted and logged.
    """

    def __init__(
        self, sinks: Sequence[AlertSink], *, names: Collection[EventName] | None = None, capacity: int = _CAPACITY
    ) -> None:
        self._sinks, self._names, self._capacity = tuple(sinks), names, capacity
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="millstream-alerts", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Event]) -> None:
        """Queue events; returns at once, also while a sink is slow."""
        wanted = [e for e in events if self._names is None or e.event in self._names]
        with self._changed:
            room = 0 if self._is_closed else self._capacity - len(self._waiting)
            self._waiting.extend(wanted[:room])
            dropped = len(wanted) - min(room, len(wanted))
            self.dropped += dropped
            self._changed.notify()
        if dropped:
            log.warning("dropped %d events for alerts (%d so far): the sinks are too slow", dropped, self.dropped)

    def use(self, sinks: Sequence[AlertSink], names: Collection[EventName] | None) -> None:
        """Send to other sinks, or other events, from now on."""
        self._sinks, self._names = tuple(sinks), names

    def close(self, timeout: float = 5.0) -> bool:
        """Send what waits, and end the thread; false if that took too long."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _work(self) -> None:
        while batch := self._next():
            for sink in self._sinks:
                try:
                    sink.send(batch)
                except Exception:
                    # The loop of a thread: an error of one sink, also of a user's own, must not end the others.
                    log.exception("the alert sink %s failed", type(sink).__name__)

    def _next(self) -> list[Event]:
        """The next events; none if the dispatcher is closed and all are sent."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]


def sinks_of(settings: Settings, catalog: Catalog, pool: ConnectionPool) -> list[AlertSink]:
    """The sinks that the settings ask for; logging is always one of them.

    Raises:
        MillstreamError: SETTING_INVALID.
    """
    sinks: list[AlertSink] = [LogSink()]
    if settings.alert_webhook_url is not None:
        sinks.append(WebhookSink(settings.alert_webhook_url))
    if settings.alert_command is not None:
        sinks.append(CommandSink(settings.alert_command))
    if settings.alert_notify:
        sinks.append(NotifySink(catalog.databases, pool))
    return sinks
