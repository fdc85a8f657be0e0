"""A poll: one transaction whose snapshot is the position a database's captured tables are brought to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.connection import Connection, Identity
from millstream.sources.postgres.lsn import parse_lsn

_WHERE = """
SELECT pg_current_snapshot()::text, pg_is_in_recovery(), system_identifier,
       CASE WHEN pg_is_in_recovery() THEN '00000000' ELSE pg_walfile_name(pg_current_wal_lsn()) END, d.datname,
       d.oid::bigint, CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_flush_lsn() END::text,
       extract(epoch FROM pg_postmaster_start_time())::text
FROM pg_control_system() CROSS JOIN pg_database d WHERE d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Here:
    """Where a database is.

    Args:
        snapshot: as text.
        identity: which database it is.
        flushed: where the durable part of its WAL ends.
        started: when its server did, as text.
    """

    snapshot: str
    identity: Identity
    flushed: int
    started: str


def where(connection: Connection) -> Here:
    """The position of a database, by one query: inside a transaction that of the transaction.

    Raises:
        MillstreamError: DATABASE_UNFIT for a standby, whose snapshots do not tell which transactions are running.
    """
    row = connection.execute(_WHERE).fetchone()
    assert row is not None
    snapshot, is_standby, system, file, database, oid, flushed, started = row
    if is_standby:
        raise MillstreamError(
            Code.DATABASE_UNFIT,
            "the server is a standby: its snapshots cannot tell which transactions are still running",
            hint="attach the primary",
        )
    return Here(snapshot, Identity(int(system), int(file[:8], 16), database, oid), parse_lsn(flushed), started)


@contextmanager
def polling(connection: Connection) -> Iterator[Here]:
    """A transaction that sees one state of the database, as long as the block lasts.

    Captured changes can be read in it. The rows of a table cannot: a rewrite or TRUNCATE that commits meanwhile makes
    the table look empty. For those there is `Snapshot`, which locks the table first.
    """
    with one_snapshot(connection):
        yield where(connection)


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """A transaction whose statements see one state of the database."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    try:
        with connection.transaction():
            yield
    finally:
        connection.isolation_level = None
        connection.read_only = None
