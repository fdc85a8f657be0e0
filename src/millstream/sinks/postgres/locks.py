"""Locks that shut out the readers of a table, without keeping them waiting behind somebody who reads for hours.

Whoever waits for such a lock stops all who come after him. So it is waited for shortly, again and again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from psycopg import errors, sql

from millstream.postgres.named import Named, lock
from millstream.postgres.turns import CollidedError
from millstream.sinks.postgres.target import Connection

# Under the server's deadlock_timeout: of two sessions that wait for each other it is ours that gives up.
_WAIT = "500ms"
_PATIENCE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 5.0


def in_short_waits(connection: Connection, work: Callable[[], None]) -> None:
    """Do some work in a transaction, or in a part of the present one, once all its locks are to be had.

    What another session has made or dropped at the same time is looked at again.

    Raises:
        errors.LockNotAvailable, errors.DeadlockDetected: somebody else has held them for a minute.
    """
    row = connection.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone()
    assert row is not None
    setting = sql.SQL("SET LOCAL lock_timeout = {}")
    until, pause = time.monotonic() + _PATIENCE_SECONDS, 0.1
    while True:
        try:
            with connection.transaction():
                connection.execute(setting.format(sql.Literal(_WAIT)))
                work()
                connection.execute(setting.format(sql.Literal(row[0])))
                return
        except (errors.LockNotAvailable, errors.DeadlockDetected, CollidedError):
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def lock_out_readers(connection: Connection, table: Named) -> None:
    """Inside a transaction, have a table for ourselves until its end.

    Raises:
        MovedError: its name means another one now.
        errors.LockNotAvailable, errors.DeadlockDetected: somebody else has held it for a minute.
    """
    in_short_waits(connection, lambda: lock(connection, table, "ACCESS EXCLUSIVE"))
