"""Up to which snapshot buffers no longer have changes: a lake that was restored from a copy may be behind that."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from millstream.postgres.closed import close_only
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.installed import BufferInfo, is_own_table
from millstream.sources.postgres.snapshots import PgSnapshot

_TABLE = "trims"


def create_trims(connection: Connection, schema: str) -> None:
    """Make the table where it is kept, if there is none, for nobody else."""
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (source oid PRIMARY KEY, snapshot pg_snapshot NOT NULL)").format(
                _table(schema)
            )
        )
        close_only(connection, schema, _TABLE)


def note_trims(connection: Connection, schema: str, oids: Sequence[int], snapshot: str) -> None:
    """Say that buffers will no longer have what a snapshot sees: before it is deleted, or with that."""
    query = sql.SQL(  # durable, whatever the server's setting: an older one says that the database is an older one
        "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', 'local', true)) "
        "INSERT INTO {} (source, snapshot) SELECT unnest(%s::oid[]), %s::pg_snapshot FROM durable "
        "ON CONFLICT (source) DO UPDATE SET snapshot = EXCLUDED.snapshot"
    ).format(_table(schema))
    try:
        connection.execute(query, [list(oids), snapshot])
    except psycopg.errors.UndefinedTable:  # buffers that were installed before this was kept
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            raise
        create_trims(connection, schema)
        connection.execute(query, [list(oids), snapshot])


def forget_trims(connection: Connection, schema: str, oid: int) -> None:
    """Nothing is known of a buffer that goes."""
    if _has_trims(connection, schema):
        connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(_table(schema)), [oid])


def trimmed_past(connection: Connection, buffers: Sequence[BufferInfo], position: str) -> set[int]:
    """The oids of the sources whose buffers do not have all that came after a position, as far as it was kept."""
    here = PgSnapshot.parse(position)
    return {oid for oid, snapshot in trimmed_to(connection, buffers).items() if not here.covers(snapshot)}


def trimmed_to(connection: Connection, buffers: Sequence[BufferInfo]) -> dict[int, PgSnapshot]:
    """Up to where buffers were trimmed, by the oids of their sources, as far as it was kept."""
    if not buffers or not _has_trims(connection, buffers[0].schema):
        return {}
    query = sql.SQL("SELECT source::bigint, snapshot::text FROM {} WHERE source = ANY(%s)")
    rows = connection.execute(query.format(_table(buffers[0].schema)), [[b.oid for b in buffers]])
    return {oid: PgSnapshot.parse(snapshot) for oid, snapshot in rows}


def _has_trims(connection: Connection, schema: str) -> bool:
    """Asked before, as an error would end the transaction."""
    return is_own_table(connection, schema, _TABLE)


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, _TABLE)
