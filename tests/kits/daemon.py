"""A daemon in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream import Millstream, StreamTableStatus
from millstream.service.daemon.loop import Activity

PATIENCE_SECONDS = 120.0


class Running:
    """A daemon, and what it has decided so far."""

    def __init__(self, ms: Millstream) -> None:
        self.ms = ms
        self.stop, self.reload = threading.Event(), threading.Event()
        self.activities: list[Activity] = []
        self.errors: list[BaseException] = []
        self.is_standby = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.ms.run(
                self.stop, on_activity=self.activities.append, on_standby=self.is_standby.set, reload=self.reload
            )
        except BaseException as error:  # noqa: BLE001 - shown to the test
            self.errors.append(error)

    def end(self) -> None:
        """Stop it, and wait for its end."""
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def running(ms: Millstream, *, fails: bool = False) -> Iterator[Running]:
    """A daemon for the duration of the block.

    Args:
        fails: the test expects an error; otherwise what it raised fails the test.
    """
    daemon = Running(ms)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.end()
    assert fails == bool(daemon.errors), daemon.errors


def until(condition: Callable[[], object]) -> float:
    """Wait until something is so; returns how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < PATIENCE_SECONDS, "it never became so"
        time.sleep(0.05)
    return time.monotonic() - start


def status_of(ms: Millstream, name: str) -> StreamTableStatus:
    """The status of one stream table."""
    return next(s for s in ms.status() if s.name == name)
