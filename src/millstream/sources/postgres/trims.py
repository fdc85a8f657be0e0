"""What a database knows of its readers: up to where each buffer was trimmed, and up to where changes were read at all.

A lake that was restored from a copy may be behind the first. A database that was restored from a copy is behind the
second, the mark: it is durable before a tick records that it has read so far, so a crash of the server cannot undo it.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors, sql
from psycopg.pq import TransactionStatus

from millstream.postgres.closed import close_only
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.installed import BufferInfo, is_own_table
from millstream.sources.postgres.poll import where
from millstream.sources.postgres.snapshots import PgSnapshot

_TABLE = "trims"
_MARK = 0  # in the place of a table's oid


def create_trims(connection: Connection, schema: str) -> None:
    """Make the table where it is kept, if there is none, for nobody else and with a mark of this time."""
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} (source oid PRIMARY KEY, snapshot pg_snapshot NOT NULL)").format(
                _table(schema)
            )
        )
        close_only(connection, schema, _TABLE)
        first = sql.SQL("INSERT INTO {} VALUES (%s, pg_current_snapshot()) ON CONFLICT (source) DO NOTHING")
        connection.execute(first.format(_table(schema)), [_MARK])


def note_trims(connection: Connection, schema: str, oids: Sequence[int], snapshot: str) -> None:
    """Say that buffers will no longer have what a snapshot sees: before it is deleted, or with that."""
    try:
        _note(connection, schema, oids, snapshot)
    except errors.UndefinedTable:  # buffers that were installed before this was kept
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            raise
        create_trims(connection, schema)
        _note(connection, schema, oids, snapshot)


def note_mark(connection: Connection, schema: str, snapshot: str, started: str) -> bool:
    """Say that what a snapshot sees is about to be read; afterwards all that it sees is durable, and so is the mark.

    Args:
        connection: one without an open transaction.
        started: when the server had started that gave the snapshot. Another one may have older files: a mark there
            would hide that.

    Returns:
        Whether it was left. There may be no place for it: where nothing was installed, or somebody has dropped that.
    """
    assert connection.info.transaction_status is TransactionStatus.IDLE
    try:
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = local")  # whatever the server's setting
            if where(connection).started != started:
                return False
            _note(connection, schema, [_MARK], snapshot)
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return False
    return True


def _note(connection: Connection, schema: str, oids: Sequence[int], snapshot: str) -> None:
    query = sql.SQL(
        "INSERT INTO {} (source, snapshot) SELECT unnest(%s::oid[]), %s::pg_snapshot "
        "ON CONFLICT (source) DO UPDATE SET snapshot = EXCLUDED.snapshot"
    )
    connection.execute(query.format(_table(schema)), [list(oids), snapshot])


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


def mark_in(connection: Connection, schema: str) -> PgSnapshot | None:
    """The mark that readers have left, as far as it was kept."""
    if not _has_trims(connection, schema):
        return None
    query = sql.SQL("SELECT snapshot::text FROM {} WHERE source = %s").format(_table(schema))
    row = connection.execute(query, [_MARK]).fetchone()
    return PgSnapshot.parse(row[0]) if row is not None else None


def _has_trims(connection: Connection, schema: str) -> bool:
    """Asked before, as an error would end the transaction."""
    return is_own_table(connection, schema, _TABLE)


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, _TABLE)
