"""A daemon in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kits.lake import Lake
from millstream.results import StreamTableStatus
from millstream.service.daemon.loop import Activity

PATIENCE_SECONDS = 120.0


class Running:
    """A daemon in a thread of its own."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.stop, self.reload = threading.Event(), threading.Event()
        self.activities: list[Activity] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.lake.ms.run(self.stop, on_activity=self.activities.append, reload=self.reload)
        except BaseException as error:  # noqa: BLE001 - shown to the test
            self.errors.append(error)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def running(lake: Lake) -> Iterator[Running]:
    daemon = Running(lake)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.end()


def until(condition: Callable[[], object]) -> float:
    """Wait until something is so; returns how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < PATIENCE_SECONDS, "it never became so"
        time.sleep(0.05)
    return time.monotonic() - start


def status_of(lake: Lake, name: str) -> StreamTableStatus:
    return next(s for s in lake.ms.status() if s.name == name)
