"""Events as records of Python's logging: logger `millstream.events`, at the level of their severity."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millstream.events import Event, Severity

LOGGER = "millstream.events"
_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}


class LogSink:
    """Logs each event as one line; the record's attribute `millstream_event` holds it as data."""

    failures = 0

    def __init__(self) -> None:
        self._log = logging.getLogger(LOGGER)

    def send(self, events: Sequence[Event]) -> None:
        """Log the events."""
        for event in events:
            self._log.log(_LEVELS[event.severity], "%s", event.text, extra={"millstream_event": event.dump()})
