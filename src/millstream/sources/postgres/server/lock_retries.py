"""Retries DDL that gives up quickly when it has to wait for a lock: writers are held up for milliseconds only."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import CollidedError
from millstream.postgres.driver import psycopg, sql
from millstream.postgres.locked_names import MovedError

if TYPE_CHECKING:
    from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings

Result = TypeVar("Result")


def with_locks(connection: Connection, settings: BufferSettings, failed: str, work: Callable[[], Result]) -> Result:
    """Run DDL in a transaction of its own, and try again until its locks are available.

    Raises:
        MillstreamError: LOCK_TIMEOUT, PRIVILEGE_MISSING.
    """
    until = time.monotonic() + settings.patience_seconds
    pause = 0.05
    while True:
        try:
            with connection.transaction(), _coded(failed):
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(settings.lock_timeout_ms))
                return work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, CollidedError, MovedError) as e:
            if time.monotonic() + pause > until:
                raise MillstreamError(
                    Code.LOCK_TIMEOUT,
                    f"{failed}: a transaction has held a lock on it for {settings.patience_seconds:.0f} seconds",
                    hint="look for long transactions in pg_stat_activity, and try again",
                ) from e
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 5.0)


@contextmanager
def _coded(failed: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as e:
        raise MillstreamError(
            Code.PRIVILEGE_MISSING, f"{failed}: {e.diag.message_primary}", hint="grant the role the missing right"
        ) from e
