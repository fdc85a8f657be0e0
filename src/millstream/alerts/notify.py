"""Events by NOTIFY, on the channel `millstream_alert` of every attached database.

Every role that can connect may LISTEN, so the payload leaves out what could quote a row that it may not read: messages
of errors, and the facts after a reason's code. Both are in the catalog.

A NOTIFY stores nothing, but PostgreSQL gives its transaction an id. The pool remembers the id, so that the next tick
of this process does not take it for a write.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from millstream.alerts.sink import FailureCount
from millstream.catalog.attached import AttachedDatabase
from millstream.errors import MillstreamError
from millstream.events import Event
from millstream.postgres.driver import psycopg
from millstream.postgres.pool import ConnectionPool

CHANNEL = "millstream_alert"
MAX_PAYLOAD_BYTES = 7_999
"""PostgreSQL refuses payloads of 8,000 bytes or more."""

_MAX_PENDING = 1_000
_PAUSE_SECONDS = 10.0
_UNSENT = ("error_message",)
_NOTIFY = """
SELECT pg_catalog.pg_current_xact_id()::text, extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,
       pg_catalog.pg_notify(%s, payload)
FROM pg_catalog.unnest(%s::text[]) AS payload
"""


class NotifySink:
    """Sends events into the attached databases; one that cannot be reached gets them with a later event.

    Args:
        databases: gives the attached databases as they are now.
        clock: seconds, for the pause after a failure: a connection attempt may take long.
    """

    def __init__(
        self,
        databases: Callable[[], Sequence[AttachedDatabase]],
        pool: ConnectionPool,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._databases, self._pool, self._clock = databases, pool, clock
        self._pending: dict[str, deque[str]] = {}
        self._retry_at: dict[str, float] = {}
        self._failed = FailureCount("NOTIFY")

    @property
    def failures(self) -> int:
        """How often a database could not be notified."""
        return self._failed.total

    def send(self, events: Sequence[Event]) -> None:
        """NOTIFY the attached databases."""
        try:
            databases = self._databases()
        except MillstreamError as e:
            self._failed.add(e.message)
            return
        payloads = [payload(event) for event in events]
        self._pending = {d.name: self._pending.get(d.name, deque(maxlen=_MAX_PENDING)) for d in databases}
        for database in databases:
            pending = self._pending[database.name]
            pending.extend(payloads)
            if self._clock() >= self._retry_at.get(database.name, 0.0) and self._notify(database, list(pending)):
                pending.clear()

    def _notify(self, database: AttachedDatabase, payloads: list[str]) -> bool:
        try:
            with self._pool.visiting(database) as connection:
                row = connection.execute(_NOTIFY, [CHANNEL, payloads]).fetchone()
        except (MillstreamError, psycopg.Error) as e:
            self._retry_at[database.name] = self._clock() + _PAUSE_SECONDS
            self._failed.add(f"{database.name}: {str(e).splitlines()[0] if str(e) else type(e).__name__}")
            return False
        self._retry_at.pop(database.name, None)
        if row is not None:
            self._pool.own.add((database.system, row[1]), int(row[0]))
        return True


def payload(event: Event) -> str:
    """The JSON of an event without what not every role may read, in less than 8,000 bytes."""
    data = {name: value for name, value in event.dump().items() if name not in _UNSENT}
    if isinstance(data.get("reason"), str):
        data["reason"] = data["reason"].partition(":")[0]
    text = _json(data)
    while (excess := len(text.encode()) - MAX_PAYLOAD_BYTES) > 0:
        longest = max((name for name, value in data.items() if isinstance(value, str)), key=lambda n: len(data[n]))
        kept = max(len(data[longest]) - max(excess, 16), 0)
        data[longest] = f"{data[longest][:kept]}…"
        text = _json(data)
    return text


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
