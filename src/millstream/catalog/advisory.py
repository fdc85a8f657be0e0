"""Locks of a shared catalog: PostgreSQL's session advisory locks, which end with the connection that holds them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from millstream.catalog.database import label_of, postgres_arguments, translated

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection

_HOLDER = sa.text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND l.classid::bigint = :high AND l.objid::bigint = :low"
)
_APPLICATION = re.compile(r"millstream (\d+)@(.*)")


class AdvisoryLocks:
    """The lock backend of a shared catalog. Each session has its own connection, which is kept for the next one.

    An external connection pooler that assigns connections per transaction breaks session locks.
    """

    def __init__(self, url: URL, lake_id: str) -> None:
        self._label = label_of(url)
        self._lake_id = lake_id
        self._engine = sa.create_engine(
            url,
            connect_args=postgres_arguments(url),
            pool_pre_ping=True,
            max_overflow=-1,
            isolation_level="AUTOCOMMIT",  # otherwise a waiting or working holder would be idle in a transaction
        )

    @contextmanager
    def session(self) -> Iterator[AdvisorySession]:
        """A connection that can take locks and releases them all at the end."""
        try:
            with self._engine.connect() as connection:
                session = AdvisorySession(connection, self._lake_id)
                try:
                    yield session
                finally:
                    session.release()
        except SQLAlchemyError as e:
            raise translated(e, self._label) from e

    def close(self) -> None:
        """Close all idle connections."""
        self._engine.dispose()


class AdvisorySession:
    """One holder of locks."""

    def __init__(self, connection: Connection, lake_id: str) -> None:
        self._connection = connection
        self._lake_id = lake_id

    def try_lock(self, key: str, *, is_shared: bool = False) -> bool:
        """Take a lock if it is free; a shared one also if others share it."""
        take = sa.func.pg_try_advisory_lock_shared if is_shared else sa.func.pg_try_advisory_lock
        return bool(self._connection.execute(sa.select(take(self._number(key)))).scalar_one())

    def holder(self, key: str) -> tuple[int, str] | None:
        """The process id and host of the lock's holder, if they are known."""
        number = self._number(key)
        halves = {"high": (number >> 32) & 0xFFFFFFFF, "low": number & 0xFFFFFFFF}
        found = _APPLICATION.match(self._connection.execute(_HOLDER, halves).scalar() or "")
        return (int(found[1]), found[2]) if found else None

    def release(self) -> None:
        """Release all locks. If that fails, the connection is closed, which releases them."""
        try:
            self._connection.execute(sa.select(sa.func.pg_advisory_unlock_all()))
        except SQLAlchemyError:
            self._connection.invalidate()

    def _number(self, key: str) -> int:
        digest = hashlib.blake2b(f"{self._lake_id}/{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)
