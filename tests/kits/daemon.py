"""A daemon in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream import Millstream
from millstream.service.daemon.loop import Activity

PATIENCE_SECONDS = 120.0


class Running:
    """A daemon, and what it has decided so far."""

    def __init__(self, ms: Millstream) -> None:
        self.ms = ms
        self.stop = threading.Event()
        self.activities: list[Activity] = []
        self.errors: list[BaseException] = []
        self.is_standby = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.ms.run(self.stop, on_activity=self.activities.append, on_standby=self.is_standby.set)
        except BaseException as error:  # noqa: BLE001 - shown to the test
            self.errors.append(error)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def running(ms: Millstream) -> Iterator[Running]:
    """A daemon for the duration of the block; what it raised fails the test."""
    daemon = Running(ms)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.end()
    assert not daemon.errors


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.05)
