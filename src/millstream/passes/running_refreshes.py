"""The refreshes that this process is running, and what stops them: their time limit, and requests of any process.

A request is an event in the catalog, so it reaches the process that runs the refresh, whichever that is. While a
refresh is running, one thread reads the catalog a few times per second; while none is, nothing happens.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from millstream.cancellation import Cancellation, cancellable
from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.lake.locks import LockManager
from millstream.naming import TableName

_log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 0.25
_RECENT = 50
"""How many of the last requests are read at first; older ones cannot be about a refresh that has just begun."""


@dataclass(eq=False)
class _Running:
    names: tuple[TableName, ...]
    started_at: datetime
    ends_at: float | None
    """When its time is over, by the monotonic clock."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    is_known: bool = False
    """Whether it was running when requests were last read: then every new one is meant for it."""


class RunningRefreshes:
    """Stops the refreshes of this process that are cancelled or take too long.

    Args:
        time_limit: how long a refresh may take, in seconds; 0 for any time.
    """

    def __init__(self, catalog: Catalog, clock: Callable[[], datetime], time_limit: Callable[[], float]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._time_limit = time_limit
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._thread: threading.Thread | None = None
        self._last_request: int | None = None
        self._is_closed = False

    @contextmanager
    def refreshing(self, names: Sequence[TableName], worker: Worker) -> Iterator[None]:
        """The block refreshes a stream table, or all members of a cycle, in this thread; it ends early if stopped."""
        limit = self._time_limit()
        running = _Running(tuple(names), self._clock(), time.monotonic() + limit if limit else None)
        with self._changed:
            self._running.append(running)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="millstream-cancel", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            with cancellable(running.cancellation), worker.interruptible():
                yield
        finally:
            with self._changed:
                self._running.remove(running)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running or self._is_closed)
                self._changed.wait_for(lambda: self._is_closed, _LOOK_EVERY_SECONDS)
                if self._is_closed:
                    return
                running = list(self._running)
            if not running:
                self._last_request = None  # requests that come while nothing runs are not read
                continue
            self._stop_late(running)
            try:
                self._stop_cancelled(running)
            except MillstreamError as error:
                _log.warning("cannot look for requests to cancel: %s: %s", error.code, error.message)
            for each in running:
                each.cancellation.interrupt()

    def _stop_late(self, running: list[_Running]) -> None:
        now = time.monotonic()
        for each in running:
            if each.ends_at is not None and now >= each.ends_at:
                each.cancellation.request(_timed_out(each.names, self._time_limit()))

    def _stop_cancelled(self, running: list[_Running]) -> None:
        limit = _RECENT if self._last_request is None else None
        for event in self._catalog.events(self._last_request, names={EventName.CANCEL_REQUESTED}, limit=limit):
            self._last_request = event.event_id
            for each in running:
                is_meant = (event.schema, event.stream_table) in {(name.schema, name.name) for name in each.names}
                if is_meant and (each.is_known or event.time >= each.started_at):
                    each.cancellation.request(_cancelled(each.names, event))
        self._last_request = self._last_request or 0
        for each in running:
            each.is_known = True


def request_cancel(catalog: Catalog, locks: LockManager, table: StreamTable, now: datetime) -> bool:
    """Ask the process that refreshes a table to stop; false if none does."""
    try:
        with locks.acquire([table.id], timeout=0):
            return False
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
    host, pid = socket.gethostname(), os.getpid()
    catalog.record_events([Event.of(EventName.CANCEL_REQUESTED, now, table.name, host=host, pid=pid)])
    return True


def _cancelled(names: Sequence[TableName], event: Event) -> MillstreamError:
    name = ", ".join(map(str, names))
    return MillstreamError(
        Code.REFRESH_CANCELLED,
        f"the refresh of {name} was cancelled by process {event.fields['pid']} on {event.fields['host']}",
        hint=f"nothing was changed; ALTER STREAM TABLE {names[0]} SET STATUS SUSPENDED keeps it from starting again",
    )


def _timed_out(names: Sequence[TableName], limit: float) -> MillstreamError:
    name = ", ".join(map(str, names))
    return MillstreamError(
        Code.REFRESH_TIMEOUT,
        f"the refresh of {name} was stopped after {limit:g} s",
        hint="raise refresh_timeout_seconds, or make the query cheaper; the old contents are still readable",
    )
