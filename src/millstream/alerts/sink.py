"""What every alert sink has in common."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from millstream.events import Event

log = logging.getLogger(__name__)


class AlertSink(Protocol):
    """Where events are sent. A sink that fails counts and logs that; it raises nothing."""

    @property
    def failures(self) -> int:
        """How many batches could not be sent."""

    def send(self, events: Sequence[Event]) -> None:
        """Send events in their order. It may take a while: only the dispatcher's thread calls it."""


class FailureCount:
    """The failures of one sink, each of them logged."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self.total = 0

    def add(self, why: str) -> None:
        """Count and log a failure. `why` holds no secret: neither the address of a webhook nor a password."""
        self.total += 1
        log.warning("alerts by %s failed (%d so far): %s", self._sink, self.total, why)
