"""The open connections to attached databases, kept between uses by capture, serving and monitoring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from millstream.cancellation import interrupting
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect, unreachable
from millstream.postgres.driver import pq, psycopg
from millstream.postgres.identity import AttachedRecord, require_same_place
from millstream.postgres.own_transactions import OwnTransactions

_TRIES = 4
_FIRST_PAUSE_SECONDS = 0.1
_PATIENCE_SECONDS = 5.0
"""A server that has not answered for this long when a connection was opened is not tried again by the same call."""
_CANCEL_SECONDS = 5.0
_LOCK_TIMEOUT = "10s"
"""Some of the server's own functions lock the tables they describe, e.g. those that list published tables."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class SessionKind:
    """How sessions for one purpose are set up; a connection is reused only for the same kind.

    Args:
        prepare: called once with each new connection.
        for_users: use the role's own settings, which users' triggers expect.
        checks_identity: refuse another database under the address. Capture itself checks the identity in each tick.
    """

    prepare: Callable[[Connection], None]
    for_users: bool = False
    checks_identity: bool = False


def _limit_lock_waits(connection: Connection) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])


READING = SessionKind(_limit_lock_waits)
"""Sessions in which a value always has the same text: for capture, and for queries about a database."""


@dataclass(frozen=True)
class _Destination:
    """Where an idle connection leads; another database may be attached under the same name later."""

    kind: SessionKind
    address: str
    place: tuple[int, str] | None

    @classmethod
    def of(cls, database: AttachedRecord, kind: SessionKind) -> _Destination:
        place = (database.system, database.database) if kind.checks_identity else None
        return cls(kind, database.address, place)


class ConnectionPool:
    """Connections by the names of attached databases; one caller at a time uses each.

    `own` are the transactions over them that changed nothing that anybody reads.
    """

    def __init__(self) -> None:
        self.own = OwnTransactions()
        self._idle: dict[str, list[tuple[_Destination, Connection]]] = {}
        self._seconds: dict[str, Connection] = {}
        self._guard = threading.Lock()

    def run(self, database: AttachedRecord, action: Callable[[Connection], Result]) -> Result:
        """Run an action with a connection, again from the start if the connection is lost meanwhile.

        The caller holds the database's lock: one action runs per database, and it may use a `second` connection.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, PRIVILEGE_MISSING, or what `action` raises.
        """
        for attempt in range(_TRIES):
            is_last, used, begun = attempt == _TRIES - 1, list[Connection](), time.monotonic()
            try:
                with self._lent(database, used) as connection, interrupting(partial(_cancel, connection)):
                    return action(connection)
            except MillstreamError as error:
                is_silent = not used and time.monotonic() - begun > _PATIENCE_SECONDS
                if error.code is not Code.DATABASE_UNREACHABLE or is_last or is_silent:
                    raise
            except psycopg.Error as error:
                if not _is_about_connection(error) or (used and not any(c.closed for c in used)):
                    raise coded(error, database.name) from error
                if is_last:
                    raise unreachable(Address(database.address), error) from error
            self._close(self._pop(database.name, lambda destination: destination.kind is READING))
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def second(self, database: AttachedRecord) -> Connection:
        """A second connection for the running action, the same one until it ends.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE.
        """
        with self._guard:
            found = self._seconds.get(database.name)
        if found is None or found.closed:
            found = self._take(database, READING) or _opened(database, READING)
            with self._guard:
                self._seconds[database.name] = found
        return found

    @contextmanager
    def _lent(self, database: AttachedRecord, used: list[Connection]) -> Iterator[Connection]:
        connection = self._take(database, READING) or _opened(database, READING)
        used.append(connection)
        try:
            yield connection
        finally:
            with self._guard:
                second = self._seconds.pop(database.name, None)
            used += [second] if second is not None else []
            for each in used:
                self._give_back(database, READING, each)

    @contextmanager
    def borrowed(self, database: AttachedRecord, kind: SessionKind) -> Iterator[Connection]:
        """A connection that is kept for the next caller, unless the block fails.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE; DATABASE_REPLACED if the kind checks identity.
        """
        with self._alive(database, kind) as (connection, _), interrupting(partial(_cancel, connection)):
            yield connection
        self._give_back(database, kind, connection)

    @contextmanager
    def visiting(self, database: AttachedRecord) -> Iterator[Connection]:
        """A connection for a few queries: an idle one, or a new one that is closed afterwards.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE.
        """
        with self._alive(database, READING) as (connection, is_new):
            yield connection
        if is_new:
            connection.close()
        else:
            self._give_back(database, READING, connection)

    def disconnect(self, name: str) -> None:
        """Close the idle connections to a database: its owner may want to drop it."""
        self._close(self._pop(name, lambda _: True))

    def close(self) -> None:
        """Close all idle connections."""
        with self._guard:
            names = list(self._idle)
        for name in names:
            self.disconnect(name)

    @contextmanager
    def _alive(self, database: AttachedRecord, kind: SessionKind) -> Iterator[tuple[Connection, bool]]:
        """A connection that answers, and whether it is new; closed if the block fails."""
        connection = self._take(database, kind)
        while connection is not None and not _answers(connection):
            connection = self._take(database, kind)
        is_new = connection is None
        if connection is None:
            connection = _opened(database, kind)
        try:
            yield connection, is_new
        except BaseException:
            connection.close()
            raise

    def _take(self, database: AttachedRecord, kind: SessionKind) -> Connection | None:
        """An idle connection; those to a former address of the database are closed."""
        wanted = _Destination.of(database, kind)
        self._close(self._pop(database.name, lambda destination: destination.address != database.address))
        with self._guard:
            kept = self._idle.get(database.name, [])
            for i, (destination, connection) in enumerate(kept):
                if destination == wanted:
                    del kept[i]
                    return connection
        return None

    def _give_back(self, database: AttachedRecord, kind: SessionKind, connection: Connection) -> None:
        if connection.info.transaction_status is not pq.TransactionStatus.IDLE:  # lost, or a transaction is open
            connection.close()
            return
        with self._guard:
            self._idle.setdefault(database.name, []).append((_Destination.of(database, kind), connection))

    def _pop(self, name: str, is_wanted: Callable[[_Destination], bool]) -> list[Connection]:
        with self._guard:
            kept = self._idle.pop(name, [])
            if others := [(d, c) for d, c in kept if not is_wanted(d)]:
                self._idle[name] = others
        return [connection for destination, connection in kept if is_wanted(destination)]

    def _close(self, connections: list[Connection]) -> None:
        for connection in connections:
            connection.close()


def _opened(database: AttachedRecord, kind: SessionKind) -> Connection:
    connection = connect(Address(database.address), for_users=kind.for_users)
    try:
        kind.prepare(connection)
        if kind.checks_identity:
            require_same_place(connection, database)
    except BaseException:
        connection.close()
        raise
    return connection


def _cancel(connection: Connection) -> None:
    """Cancel the statement that a connection of another thread is running, if any."""
    with suppress(psycopg.Error):  # the server is gone, or the connection was closed meanwhile
        connection.cancel_safe(timeout=_CANCEL_SECONDS)


def _answers(connection: Connection) -> bool:
    """Whether a connection that was kept still works; the server may have been restarted."""
    try:
        connection.execute("SELECT")
    except psycopg.OperationalError:
        connection.close()
        return False
    return True


def coded(error: psycopg.Error, database: str) -> MillstreamError:
    """The coded error for an error of the server."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MillstreamError(
            Code.PRIVILEGE_MISSING,
            f"{database} denied access: {said}",
            hint="the role needs USAGE on the schema, SELECT and TRIGGER on the table, and must bypass row security",
        )
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
        return MillstreamError(
            Code.LOCK_TIMEOUT, f"{database} is busy: {said}", hint="try again when long transactions have ended"
        )
    return MillstreamError(Code.DATABASE_UNFIT, f"{database} reported an error: {said}", hint="see the server's log")


def _is_about_connection(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
