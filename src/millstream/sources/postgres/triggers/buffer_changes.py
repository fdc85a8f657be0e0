"""What changed between two snapshots of a database, read from the buffers of its captured tables.

A row belongs to the changes (old, new] if its transaction is visible in `new` and not in `old`. Nothing else decides:
not the order of a sequence, a clock or the WAL, in all of which a transaction that commits late lies behind a tick that
has passed it. Each transaction is read as a whole, and exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Code, MillstreamError
from millstream.naming import WEIGHT
from millstream.postgres.connection import Connection
from millstream.postgres.driver import pq, psycopg, sql
from millstream.sources.postgres import memory_limit
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.triggers.buffer_sql import LEAF, ORDER, SIGN, TRANSACTION
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo
from millstream.sources.postgres.triggers.trims import record_trims
from millstream.sources.postgres.values.decode import batch_schema, read_csv
from millstream.sources.postgres.values.types import MirrorColumn

_TRIM_BLOCKS = 4_096
"""How much of a buffer is trimmed in one transaction: 32 MB, well under a second."""
_VACUUM_ROWS = 100_000
"""After deleting this many rows, we do not wait for the server's own vacuum: each tick reads the whole buffer."""

_MEASURED_FROM = 8
"""Changes are measured if their buffers exceed this fraction of the memory limit: long texts are compressed there."""

_SIGN_COLUMN = MirrorColumn(WEIGHT, "smallint", "bigint")
_LEAF_COLUMN = MirrorColumn(LEAF, "oid", "bigint")


def read_changes(
    connection: Connection, buffer: BufferInfo, columns: Sequence[MirrorColumn], old: str, new: str
) -> TableChanges:
    """The changes of some captured columns between two snapshots.

    `new` is the snapshot of the transaction this runs in, or an earlier one: the result is the same at any later time,
    as long as nothing after `old` was trimmed.

    Raises:
        MillstreamError: CAPTURE_LOST if the buffer does not exist; VALUE_UNSUPPORTED.
    """
    with _intact():
        return _read(connection, buffer, columns, _within(old, new))


def _read(
    connection: Connection, buffer: BufferInfo, columns: Sequence[MirrorColumn], within: sql.Composed
) -> TableChanges:
    rows = _copy(connection, buffer, columns, within)
    is_marker = pc.equal(rows[WEIGHT], 0)
    strange = _is_of_another_leaf(rows, buffer)
    if not pc.any(is_marker).as_py() and not pc.any(strange).as_py():
        return TableChanges(_without_leaf(rows))
    whole, part = _last_markers(connection, buffer, within)
    if whole is not None:
        # TRUNCATE waits for all writers and keeps them out, so what came before it is before it in the WAL.
        within = sql.SQL("{} AND {} > {}").format(within, sql.Identifier(ORDER), whole)
        rows = _copy(connection, buffer, columns, within)
        is_marker = pc.equal(rows[WEIGHT], 0)
        strange = _is_of_another_leaf(rows, buffer)
    data = rows.filter(pc.invert(is_marker))
    if pc.any(pc.and_(strange, pc.invert(is_marker))).as_py() or (
        part is not None and (whole is None or _has_rows_before(connection, buffer, within, part))
    ):
        return TableChanges(_without_leaf(data.slice(0, 0)), must_reread=True)
    return TableChanges(_without_leaf(data), truncated=whole is not None)


def changed_buffers(connection: Connection, buffers: Sequence[BufferInfo], old: str, new: str) -> dict[int, int]:
    """The oids of the sources that have changes between two snapshots, and their buffers' bytes, by one statement.

    Raises:
        MillstreamError: CAPTURE_LOST if a buffer does not exist.
    """
    if not buffers:
        return {}
    query = _changed_query(tuple((b.schema, b.oid) for b in buffers))
    with _intact(), psycopg.RawCursor(connection) as cursor:  # others search all of it for placeholders each time
        return dict(cursor.execute(query, [old, new], prepare=True).fetchall())


def too_large(
    connection: Connection, buffers: Sequence[BufferInfo], changed: Mapping[int, int], old: str, new: str
) -> set[int]:
    """The changed sources whose changes must not be read: all together they would exceed the memory limit.

    Args:
        changed: what `changed_buffers` returned.
    """
    if sum(changed.values()) <= memory_limit.MAX_BYTES // _MEASURED_FROM:
        return set()
    sizes: dict[int, int] = {}
    for buffer in buffers:
        if buffer.oid in changed:
            query = sql.SQL("SELECT sum(octet_length(b::text) + 20)::bigint FROM {} b WHERE {}")
            row = connection.execute(query.format(buffer.table, _within(old, new))).fetchone()
            assert row is not None
            sizes[buffer.oid] = row[0] or 0
    total, left = 0, set[int]()
    for oid, size in sorted(sizes.items(), key=lambda item: item[1]):
        total += size
        if total > memory_limit.MAX_BYTES:
            left.add(oid)
    return left


def trim(connection: Connection, buffers: Sequence[BufferInfo], oldest: str) -> int:
    """Delete what all readers have consumed; returns the number of rows.

    Writers never wait: rows are deleted, in bounded transactions. What is visible in a snapshot is visible in all later
    ones, so no read that begins at `oldest` or later would return it.

    Args:
        oldest: the earliest position at which a read may still begin.

    Raises:
        MillstreamError: CAPTURE_LOST if a buffer does not exist.
    """
    deleted = 0
    for schema in {b.schema for b in buffers}:
        with _intact():
            record_trims(connection, schema, [b.oid for b in buffers if b.schema == schema], oldest)
    for buffer in buffers:
        with _intact():
            gone = _trim(connection, buffer, oldest)
        if gone >= _VACUUM_ROWS and connection.info.transaction_status is pq.TransactionStatus.IDLE:
            connection.execute(sql.SQL("VACUUM {}").format(buffer.table))
        deleted += gone
    return deleted


@contextmanager
def _intact() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName) as e:
        raise MillstreamError(
            Code.CAPTURE_LOST,
            f"a buffer was removed or altered: {e.diag.message_primary}",
            hint="the tables will be captured and read again",
        ) from e


def _trim(connection: Connection, buffer: BufferInfo, oldest: str) -> int:
    row = connection.execute(
        "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int", [buffer.table.as_string()]
    ).fetchone()
    assert row is not None
    deleted = 0
    for first in range(0, int(row[0]), _TRIM_BLOCKS):
        done = connection.execute(
            sql.SQL(
                "DELETE FROM {buffer} WHERE ctid >= {first} AND ctid < {last} AND {xid} < pg_snapshot_xmax({oldest}) "
                "AND pg_visible_in_snapshot({xid}, {oldest})"
            ).format(
                buffer=buffer.table,
                first=sql.SQL("{}::tid").format(sql.Literal(f"({first},0)")),
                last=sql.SQL("{}::tid").format(sql.Literal(f"({first + _TRIM_BLOCKS},0)")),
                xid=sql.Identifier(TRANSACTION),
                oldest=sql.SQL("{}::pg_snapshot").format(sql.Literal(oldest)),
            )
        )
        deleted += done.rowcount
    return deleted


def _within(old: str, new: str) -> sql.Composed:
    return sql.SQL(_WITHIN).format(
        xid=sql.Identifier(TRANSACTION),
        old=sql.SQL("{}::pg_snapshot").format(sql.Literal(old)),
        new=sql.SQL("{}::pg_snapshot").format(sql.Literal(new)),
    )


# The first two terms narrow the range; the other two decide.
_WITHIN = (
    "{xid} >= pg_snapshot_xmin({old}) AND {xid} < pg_snapshot_xmax({new}) "
    "AND pg_visible_in_snapshot({xid}, {new}) AND NOT pg_visible_in_snapshot({xid}, {old})"
)


@lru_cache(maxsize=32)
def _changed_query(buffers: tuple[tuple[str, int], ...]) -> bytes:
    parts = [
        sql.SQL(
            "SELECT {}::bigint, pg_table_size(found.tableoid) FROM (SELECT tableoid FROM {} WHERE {} LIMIT 1) found"
        ).format(
            sql.Literal(oid),
            sql.Identifier(schema, f"changes_{oid}"),
            sql.SQL(_WITHIN).format(
                xid=sql.Identifier(TRANSACTION),
                old=sql.SQL("$1::pg_snapshot"),
                new=sql.SQL("$2::pg_snapshot"),
            ),
        )
        for schema, oid in buffers
    ]
    return sql.SQL(" UNION ALL ").join(parts).as_string().encode()


def _copy(
    connection: Connection, buffer: BufferInfo, columns: Sequence[MirrorColumn], within: sql.Composed
) -> pa.Table:
    own = [_SIGN_COLUMN, _LEAF_COLUMN] if buffer.by_row else [_SIGN_COLUMN]
    wanted = [*columns, *own]
    names = [*(c.name for c in columns), SIGN, *([LEAF] if buffer.by_row else [])]
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), buffer.table, within
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        chunks = (bytes(chunk) for chunk in copy)
        return pa.Table.from_batches(list(read_csv(chunks, wanted)), schema=batch_schema(wanted))


def _is_of_another_leaf(rows: pa.Table, buffer: BufferInfo) -> pa.ChunkedArray:
    """Rows of a table that was a partition in the meantime: detaching it removed them unseen."""
    if not buffer.by_row:
        return pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    known = pa.array([buffer.oid, *buffer.leaves], pa.int64())
    return pc.and_(pc.is_valid(rows[LEAF]), pc.invert(pc.is_in(rows[LEAF], known)))


def _without_leaf(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([LEAF]) if LEAF in rows.column_names else rows


def _last_markers(connection: Connection, buffer: BufferInfo, within: sql.Composed) -> tuple[str | None, str | None]:
    """Where in the WAL the last TRUNCATE of the whole table is, and the last one of a part of it."""
    is_part = (
        sql.SQL("{} = ANY({}::oid[])").format(sql.Identifier(LEAF), list(buffer.leaves))
        if buffer.by_row
        else sql.SQL("false")
    )
    is_whole = sql.SQL("{} IS NULL").format(sql.Identifier(LEAF)) if buffer.by_row else sql.SQL("true")
    row = connection.execute(
        sql.SQL(
            "SELECT max({order}) FILTER (WHERE {whole}), max({order}) FILTER (WHERE {part}) FROM {buffer} "
            "WHERE {within} AND {sign} = 0"
        ).format(
            order=sql.Identifier(ORDER),
            whole=is_whole,
            part=is_part,
            buffer=buffer.table,
            within=within,
            sign=sql.Identifier(SIGN),
        )
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def _has_rows_before(connection: Connection, buffer: BufferInfo, within: sql.Composed, part: str) -> bool:
    """Whether a TRUNCATE of a part had rows to remove: one of the whole table is recorded for all its parts too."""
    row = connection.execute(
        sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} AND {} <> 0 AND {} < {})").format(
            buffer.table, within, sql.Identifier(SIGN), sql.Identifier(ORDER), part
        )
    ).fetchone()
    return row == (True,)
