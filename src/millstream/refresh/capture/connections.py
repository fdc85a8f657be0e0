"""One open connection per attached database, made anew when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psycopg

from millstream.catalog.attached import AttachedDatabase
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.connection import Connection, connect, unreachable

_TRIES = 4
_FIRST_PAUSE_SECONDS = 0.1
_LOCK_TIMEOUT = "10s"
"""Some of the server's own functions lock the tables they tell about, e.g. those that tell what is published."""

Result = TypeVar("Result")


class Connections:
    """Connections kept between uses; whoever uses one holds the database's lock."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._addresses: dict[str, str] = {}
        self._guard = threading.Lock()

    def run(self, database: AttachedDatabase, action: Callable[[Connection], Result]) -> Result:
        """Do something with a database's connection, again from the start if the connection is lost meanwhile.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, PRIVILEGE_MISSING, or what `action` raises.
        """
        address = Address(database.address)
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                connection = self._get(database.name, address)
                return action(connection)
            except MillstreamError as error:
                if error.code is not Code.DATABASE_UNREACHABLE or last:
                    raise
            except psycopg.Error as error:
                second = self._open.get(f"{database.name}/2")
                if not _is_lost(error, [self._open.get(database.name), *([second] if second is not None else [])]):
                    raise coded(error, database.name) from error
                if last:
                    raise unreachable(address, error) from error
            self._drop(database.name)
            self._drop(f"{database.name}/2")
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def second(self, database: AttachedDatabase) -> Connection:
        """Another connection to a database, for who needs two."""
        return self._get(f"{database.name}/2", Address(database.address))

    def close(self) -> None:
        """Close all."""
        with self._guard:
            names = list(self._open)
        for name in names:
            self._drop(name)

    def _get(self, name: str, address: Address) -> Connection:
        with self._guard:
            kept, reference = self._open.get(name), self._addresses.get(name)
        if kept is not None and reference != address.reference:  # detached, and attached anew
            self._drop(name)
            kept = None
        if kept is None or kept.closed:
            kept = connect(address)
            kept.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
            with self._guard:
                self._open[name], self._addresses[name] = kept, address.reference
        return kept

    def _drop(self, name: str) -> None:
        with self._guard:
            connection = self._open.pop(name, None)
        if connection is not None:
            connection.close()


def coded(error: psycopg.Error, database: str) -> MillstreamError:
    """What a server's refusal means."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MillstreamError(
            Code.PRIVILEGE_MISSING,
            f"{database} refuses: {said}",
            hint="the role needs USAGE on the schema, SELECT and TRIGGER on the table, and no row policy in its way",
        )
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return MillstreamError(
            Code.LOCK_TIMEOUT, f"{database} is busy: {said}", hint="try again when long transactions have ended"
        )
    return MillstreamError(Code.DATABASE_UNFIT, f"{database} refuses: {said}", hint="look into the server's log")


def _is_lost(error: psycopg.Error, connections: Iterable[Connection | None]) -> bool:
    is_about_it = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_about_it and any(c is None or c.closed or c.broken for c in connections)
