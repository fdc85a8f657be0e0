"""Locks that shut out the readers of a table, without keeping them waiting behind somebody who reads for hours.

A session that waits for such a lock stops all that come after it. So each wait is short, and is repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import CollidedError
from millstream.postgres.driver import errors, sql
from millstream.postgres.locked_names import Named, lock

# Under the server's deadlock_timeout: of two sessions that wait for each other it is ours that gives up.
_WAIT = "500ms"
_PATIENCE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 5.0


def in_short_waits(connection: Connection, work: Callable[[], None]) -> None:
    """Do some work in a transaction, or in a part of the present one, once all its locks are available.

    What another session has made or dropped at the same time is read again.

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
    """Inside a transaction, lock a table against every other session until its end.

    Raises:
        MovedError: its name means another one now.
        errors.LockNotAvailable, errors.DeadlockDetected: somebody else has held it for a minute.
    """
    in_short_waits(connection, lambda: lock(connection, table, "ACCESS EXCLUSIVE"))
