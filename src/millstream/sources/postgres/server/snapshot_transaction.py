"""The transaction of a tick: the mirrors of a database are brought to the position of its snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.driver import psycopg
from millstream.postgres.identity import Identity, standby_refused
from millstream.sources.postgres.wal.lsn import parse_lsn

_STATE = """
SELECT pg_current_snapshot()::text, pg_is_in_recovery(), system_identifier,
       CASE WHEN pg_is_in_recovery() THEN '00000000' ELSE pg_walfile_name(pg_current_wal_lsn()) END, d.datname,
       d.oid::bigint, CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_flush_lsn() END::text,
       extract(epoch FROM pg_postmaster_start_time())::text
FROM pg_control_system() CROSS JOIN pg_database d WHERE d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The state of a database at one snapshot.

    Args:
        snapshot: as text.
        identity: which database it is.
        flushed: where the durable part of its WAL ends.
        started: when its server was started, as text.
    """

    snapshot: str
    identity: Identity
    flushed: int
    started: str


def database_state(connection: Connection) -> DatabaseState:
    """The state of a database, by one query; inside a transaction, the state that the transaction sees.

    Raises:
        MillstreamError: DATABASE_UNFIT for a standby, whose snapshots do not show which transactions are running.
    """
    row = connection.execute(_STATE).fetchone()
    assert row is not None
    snapshot, is_standby, system, file, database, oid, flushed, started = row
    if is_standby:
        raise standby_refused()
    return DatabaseState(snapshot, Identity(int(system), int(file[:8], 16), database, oid), parse_lsn(flushed), started)


@contextmanager
def tick_transaction(connection: Connection) -> Iterator[DatabaseState]:
    """A transaction that sees one state of the database, as long as the block lasts.

    Captured changes can be read in it. The rows of a table cannot: a rewrite or TRUNCATE that commits meanwhile makes
    the table look empty. Use `ExportedSnapshot` for them: it locks the tables first.
    """
    with snapshot_transaction(connection):
        yield database_state(connection)


@contextmanager
def snapshot_transaction(connection: Connection) -> Iterator[None]:
    """A transaction whose statements see one state of the database."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    try:
        with connection.transaction():
            yield
    finally:
        connection.isolation_level = None
        connection.read_only = None
