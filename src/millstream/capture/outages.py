"""The databases that did not answer a moment ago.

A connection attempt may take long. So that it does not delay stream tables that read other databases, scheduled passes
do not try a database that is known to be unreachable: its own watch does, and clears the outage when it answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from millstream.errors import Code, MillstreamError

_REMEMBERED_SECONDS = 120.0
"""Longer than the watch's longest pause and a connection attempt; after it, passes try again by themselves."""


class Outages:
    """Why databases are unreachable, by their names; for use by several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[MillstreamError, float]] = {}
        self._guard = threading.Lock()

    def note(self, database: str, error: MillstreamError) -> None:
        """Remember a failure, if it is one to reach the database."""
        if error.code is Code.DATABASE_UNREACHABLE:
            with self._guard:
                self._known[database] = (error, self._clock() + _REMEMBERED_SECONDS)

    def clear(self, database: str) -> None:
        """The database has answered."""
        with self._guard:
            self._known.pop(database, None)

    def refuse(self, database: str) -> None:
        """Refuse a database that is known to be unreachable.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, as when it was last tried.
        """
        with self._guard:
            error, until = self._known.get(database, (None, 0.0))
        if error is not None and self._clock() < until:
            raise MillstreamError(error.code, error.message, hint=error.hint)
