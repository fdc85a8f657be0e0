"""The connection to the catalog's database: SQLite in the lake, or a PostgreSQL that several machines share.

Callers only use `read()` and `write()`, each one transaction. A read is a snapshot, a write is serialised against other
writes of the same rows, and both translate SQLAlchemy's errors.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError, StatementError

from millstream.errors import Code, MillstreamError

FILE_NAME = "millstream.db"
BUSY_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_SECONDS = 10

_OLDEST_SQLITE = (3, 35, 0)  # the first with RETURNING
_VARIABLE = "env:"
_WRITES, _DURABLE = "millstream_writes", "millstream_durable"

# Primary result codes of SQLite, grouped by what a user can do about them.
_UNWRITABLE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNIQUE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}

_dump_json = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Database:
    """One catalog database and its pool of connections; safe to share between threads."""

    def __init__(self, url: URL) -> None:
        self.is_embedded = url.get_backend_name() == "sqlite"
        self.url = url
        self.label = label_of(url)
        with self._translated():
            engine = _sqlite_engine(url) if self.is_embedded else _postgres_engine(url)
        self._engine = engine
        self._writing = engine.execution_options(**{_WRITES: True})
        self._durably = engine.execution_options(**{_WRITES: True, _DURABLE: True})
        # Several SELECTs of one read must agree. In SQLite they do; in PostgreSQL only from this isolation level up.
        self._reading = engine if self.is_embedded else engine.execution_options(isolation_level="REPEATABLE READ")

    @classmethod
    def at(cls, url_or_path: str | Path) -> Database:
        """The database of a `postgresql://` or `sqlite://` URL, or of a lake's directory (created if missing).

        A URL may also be `env:NAME`: the environment variable of that name holds it.
        """
        text = str(url_or_path)
        if isinstance(url_or_path, str) and text.startswith(_VARIABLE):
            text = _from_environment(text.removeprefix(_VARIABLE))
        if "://" not in text:
            return cls(_sqlite_url(Path(text)))
        try:
            url = make_url(text)
        except (ArgumentError, ValueError) as e:
            raise MillstreamError(
                Code.SETTING_INVALID, "catalog_url is not a URL", hint="write postgresql://user@host/database"
            ) from e
        if url.get_backend_name() == "sqlite":
            return cls(url.set(drivername="sqlite+pysqlite"))
        if url.get_backend_name() in ("postgresql", "postgres"):
            return cls(url.set(drivername="postgresql+psycopg"))
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"a catalog cannot be kept in {url.get_backend_name()}",
            hint="give a postgresql:// URL, or none for a SQLite file in the lake",
        )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the catalog throughout."""
        with self._translated(), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self, *, is_durable: bool = False) -> Iterator[Connection]:
        """A transaction that takes SQLite's only write lock at its start, so that it never fails half-way to get it.

        Args:
            is_durable: it and all before it survive a power cut, as they always do in PostgreSQL.
        """
        with self._translated(), (self._durably if is_durable else self._writing).begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all idle connections."""
        self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StatementError as e:
            # A parameter that cannot be stored, e.g. a time without a zone, is a bug: raise it unchanged.
            if e.orig is not None and not isinstance(e, DBAPIError):
                raise e.orig from None
            raise translated(e, self.label) from e
        except SQLAlchemyError as e:
            raise translated(e, self.label) from e


def is_directory(url_or_path: str | Path) -> bool:
    """Whether `Database.at` treats this as a lake's directory."""
    return isinstance(url_or_path, Path) or not ("://" in url_or_path or url_or_path.startswith(_VARIABLE))


def _from_environment(name: str) -> str:
    """The URL in an environment variable; never shown in an error, since it may contain a password."""
    value = os.environ.get(name, "") if name.isidentifier() else ""
    if "://" not in value:
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"catalog_url = 'env:{name}': there is no such environment variable, or it is not a URL",
            hint="set it to postgresql://user:password@host/database",
        )
    return value


def label_of(url: URL) -> str:
    """A catalog's name in messages: without the user and query parts of the URL, which may contain a password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{url.host or ''}{port}/{url.database or ''}"


def translated(error: SQLAlchemyError, label: str) -> MillstreamError:
    """The coded error for an error of SQLAlchemy."""
    cause = getattr(error, "orig", None)
    text = str(cause or error).strip()
    unavailable = MillstreamError(
        Code.CATALOG_UNAVAILABLE,
        f"the catalog {label} cannot be reached: {text}",
        hint="check catalog_url, and that the database is up",
    )
    if isinstance(error, NoSuchModuleError):
        return MillstreamError(Code.SETTING_INVALID, f"catalog_url: {text}")
    if not isinstance(error, DBAPIError):
        return unavailable if isinstance(error, sa.exc.TimeoutError) else _failed(label, text)
    if isinstance(error, IntegrityError) and _is_unique_violation(cause):
        return MillstreamError(Code.NAME_TAKEN, f"the name is taken: {text}")
    if isinstance(error, IntegrityError) and _is_missing_reference(cause):
        return MillstreamError(Code.NOT_A_STREAM_TABLE, "the stream table was dropped")
    if isinstance(cause, sqlite3.Error):
        return _from_sqlite(cause, label, text)
    if error.connection_invalidated or isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)):
        return unavailable
    return _failed(label, text)


def _from_sqlite(cause: sqlite3.Error, label: str, text: str) -> MillstreamError:
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _UNWRITABLE:
        return MillstreamError(
            Code.LAKE_UNWRITABLE,
            f"the catalog {label} cannot be written: {text}",
            hint="check the permissions and the free space of the lake's directory",
        )
    if code in _BUSY:
        return MillstreamError(
            Code.CATALOG_UNAVAILABLE,
            f"the catalog {label} was locked for {BUSY_TIMEOUT_MS / 1000:g} s",
            hint="another process holds a transaction open; for many writers, use a catalog in PostgreSQL",
        )
    return _failed(label, text)


def _failed(label: str, text: str) -> MillstreamError:
    return MillstreamError(Code.CATALOG_FAILED, f"the catalog {label} failed: {text}")


def _is_unique_violation(cause: object) -> bool:
    return getattr(cause, "sqlstate", None) == "23505" or getattr(cause, "sqlite_errorcode", None) in _UNIQUE


def _is_missing_reference(cause: object) -> bool:
    """Whether a referenced stream table is missing: all references in the catalog are to stream tables."""
    return (
        getattr(cause, "sqlstate", None) == "23503"
        or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
    )


def _sqlite_url(lake: Path) -> URL:
    try:
        lake.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MillstreamError(
            Code.LAKE_UNWRITABLE, f"cannot create the lake's directory {lake}: {e.strerror}", hint="choose another path"
        ) from e
    return URL.create("sqlite+pysqlite", database=str(lake / FILE_NAME))


def _sqlite_engine(url: URL) -> sa.Engine:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise MillstreamError(
            Code.CATALOG_UNAVAILABLE,
            f"this Python has SQLite {sqlite3.sqlite_version}; 3.35 or newer is needed",
            hint="use a newer Python, or a catalog in PostgreSQL (catalog_url)",
        )
    engine = sa.create_engine(url, json_serializer=_dump_json, max_overflow=-1)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the module's own transactions would not include SELECT and DDL
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    """Retry: SQLite does not wait for the lock of this statement, so two processes that open a new lake may collide."""
    end = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > end:
                raise
            time.sleep(0.005)


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that reads first and writes later can fail immediately with SQLITE_BUSY; this one waits.
    options = connection.get_execution_options()
    if not options.get(_WRITES, False):
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if options.get(_DURABLE, False) else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _postgres_engine(url: URL) -> sa.Engine:
    try:
        return sa.create_engine(
            url, json_serializer=_dump_json, connect_args=postgres_arguments(url), pool_pre_ping=True, max_overflow=-1
        )
    except ModuleNotFoundError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING,
            "a catalog in PostgreSQL needs psycopg",
            hint="pip install 'millstream[postgres]'",
        ) from e


def postgres_arguments(url: URL) -> dict[str, str | int]:
    """The arguments of each connection that the URL does not set; `application_name` identifies a lock's holder."""
    defaults: dict[str, str | int] = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "application_name": f"millstream {os.getpid()}@{socket.gethostname()}"[:63],
    }
    return {k: v for k, v in defaults.items() if k not in url.query}
