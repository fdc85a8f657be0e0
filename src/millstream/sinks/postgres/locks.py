"""Locks that exclude a table's readers, without making them wait behind a transaction that reads for hours.

A session that waits for such a lock blocks all that come after it. So each wait is short, and is repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import CollidedError
from millstream.postgres.driver import errors, sql
from millstream.postgres.locked_names import Named, lock

# Below the server's deadlock_timeout: if two sessions wait for each other, ours gives up.
_WAIT = "500ms"
_PATIENCE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 5.0


def in_short_waits(connection: Connection, work: Callable[[], None]) -> None:
    """Do some work in a transaction, or in a savepoint of the current one, once all its locks are available.

    The work is also repeated if another session created or dropped the same object at the same time.

    Raises:
        errors.LockNotAvailable, errors.DeadlockDetected: another session has held them for a minute.
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
        MovedError: its name now refers to another table.
        errors.LockNotAvailable, errors.DeadlockDetected: another session has held a lock on it for a minute.
    """
    in_short_waits(connection, lambda: lock(connection, table, "ACCESS EXCLUSIVE"))
