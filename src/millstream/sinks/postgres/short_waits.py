"""DDL on a served table, which must not keep its readers waiting behind somebody who reads it for hours."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from psycopg import errors, sql

from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.target import Connection

# Under the server's deadlock_timeout: of two sessions that wait for each other it is ours that gives up.
_WAIT = "500ms"
_PATIENCE_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 5.0


def in_short_waits(connection: Connection, failed: str, work: Callable[[], None]) -> None:
    """Do some work in a transaction, or in a part of the present one, again and again until its locks are to be had.

    Whoever waits for such a lock stops all who come after him, so it is waited for shortly.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    until, pause = time.monotonic() + _PATIENCE_SECONDS, 0.1
    while True:
        try:
            with connection.transaction():
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_WAIT)))
                return work()
        except (errors.LockNotAvailable, errors.DeadlockDetected) as e:
            if time.monotonic() + pause > until:
                raise MillstreamError(
                    Code.LOCK_TIMEOUT,
                    f"{failed}: others have held locks on it for {_PATIENCE_SECONDS:.0f} seconds",
                    hint="look in pg_stat_activity for long transactions that read it, and try again",
                ) from e
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
