"""A lake that is run by a thread of the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kits.lake import Lake

PATIENCE_SECONDS = 120.0


@dataclass
class Run:
    """The thread that runs a lake."""

    lake: Lake
    stop: threading.Event = field(default_factory=threading.Event)
    is_standby: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(
            target=self.lake.ms.run, args=(self.stop,), kwargs={"on_standby": self.is_standby.set}
        )
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def running(lake: Lake) -> Iterator[Run]:
    run = Run(lake)
    try:
        yield run
    finally:
        run.end()


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.05)
