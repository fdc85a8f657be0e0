"""Records in the database itself how far each buffer was trimmed, and how far changes were read at all.

A lake that was restored from a copy may be behind the first. A database that was restored from a copy is behind the
second, the mark: it is durable before a tick records that it has read that far, so a server crash cannot undo it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.postgres.closed_objects import close_only
from millstream.postgres.connection import Connection
from millstream.postgres.driver import errors, pq, sql
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.snapshot_transaction import database_state
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo, is_own_table

_TABLE = "trims"
_MARK = 0  # in the place of a table's oid


def create_trims(connection: Connection, schema: str) -> None:
    """Create the table for both, if there is none, closed to other roles and with a mark of the present snapshot."""
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (source oid PRIMARY KEY, snapshot pg_snapshot NOT NULL)").format(
                _table(schema)
            )
        )
        close_only(connection, schema, _TABLE)
        first = sql.SQL("INSERT INTO {} VALUES (%s, pg_current_snapshot()) ON CONFLICT (source) DO NOTHING")
        connection.execute(first.format(_table(schema)), [_MARK])


def record_trims(connection: Connection, schema: str, oids: Sequence[int], snapshot: str) -> None:
    """Record that buffers will no longer have what a snapshot sees, before or together with deleting it."""
    try:
        _write(connection, schema, oids, snapshot)
    except errors.UndefinedTable:  # the buffers are older than this table
        if connection.info.transaction_status is not pq.TransactionStatus.IDLE:
            raise
        create_trims(connection, schema)
        _write(connection, schema, oids, snapshot)


def record_mark(connection: Connection, schema: str, snapshot: str, started: str) -> bool:
    """Record that what a snapshot sees is about to be read; afterwards all that it sees is durable, and so is the mark.

    Args:
        connection: one without an open transaction.
        started: when the server that took the snapshot was started. A server that was started again may have older
            files: a mark there would hide that.

    Returns:
        Whether it was recorded. There is no table for it if nothing was installed, or if it was dropped.
    """
    assert connection.info.transaction_status is pq.TransactionStatus.IDLE
    try:
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = local")  # regardless of the server's setting
            if database_state(connection).started != started:
                return False
            _write(connection, schema, [_MARK], snapshot)
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return False
    return True


def _write(connection: Connection, schema: str, oids: Sequence[int], snapshot: str) -> None:
    query = sql.SQL(
        "INSERT INTO {} (source, snapshot) SELECT unnest(%s::oid[]), %s::pg_snapshot "
        "ON CONFLICT (source) DO UPDATE SET snapshot = EXCLUDED.snapshot"
    )
    connection.execute(query.format(_table(schema)), [list(oids), snapshot])


def forget_trims(connection: Connection, schema: str, oid: int) -> None:
    """Delete the record of a buffer that is dropped."""
    if _has_trims(connection, schema):
        connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(_table(schema)), [oid])


def trimmed_past(connection: Connection, buffers: Sequence[BufferInfo], position: str) -> set[int]:
    """The oids of the sources whose buffers no longer have all changes after a position, as far as recorded."""
    here = PgSnapshot.parse(position)
    return {oid for oid, snapshot in trimmed_to(connection, buffers).items() if not here.covers(snapshot)}


def trimmed_to(connection: Connection, buffers: Sequence[BufferInfo]) -> dict[int, PgSnapshot]:
    """Up to where buffers were trimmed, by the oids of their sources, as far as recorded."""
    if not buffers or not _has_trims(connection, buffers[0].schema):
        return {}
    query = sql.SQL("SELECT source::bigint, snapshot::text FROM {} WHERE source = ANY(%s)")
    rows = connection.execute(query.format(_table(buffers[0].schema)), [[b.oid for b in buffers]])
    return {oid: PgSnapshot.parse(snapshot) for oid, snapshot in rows}


def recorded_mark(connection: Connection, schema: str) -> PgSnapshot | None:
    """The mark of the last read, if there is one."""
    if not _has_trims(connection, schema):
        return None
    query = sql.SQL("SELECT snapshot::text FROM {} WHERE source = %s").format(_table(schema))
    row = connection.execute(query, [_MARK]).fetchone()
    return PgSnapshot.parse(row[0]) if row is not None else None


def _has_trims(connection: Connection, schema: str) -> bool:
    """Whether there is a table; checked first, because an error would abort the transaction."""
    return is_own_table(connection, schema, _TABLE)


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, _TABLE)
