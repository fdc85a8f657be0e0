"""Locking a table against its readers, without keeping them waiting behind somebody who reads for hours.

Whoever waits for such a lock stops all who come after him. So it is waited for shortly, again and again.
"""

from __future__ import annotations

import random
import time

from psycopg import errors, sql

from millstream.sinks.postgres.target import Connection

# Under the server's deadlock_timeout: of two sessions that wait for each other it is ours that gives up.
_WAIT = "500ms"
_PATIENCE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 5.0


def lock_out_readers(connection: Connection, relation: sql.Identifier) -> None:
    """Inside a transaction, have a table for ourselves until its end.

    Raises:
        errors.LockNotAvailable: somebody else has not let it go for a minute.
    """
    row = connection.execute("SELECT current_setting('lock_timeout')").fetchone()
    assert row is not None
    statement = sql.SQL(
        "SET LOCAL lock_timeout = {}; LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE; SET LOCAL lock_timeout = {}"
    ).format(sql.Literal(_WAIT), relation, sql.Literal(row[0]))
    until, pause = time.monotonic() + _PATIENCE_SECONDS, 0.1
    while True:
        try:
            with connection.transaction():
                connection.execute(statement)
                return
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
