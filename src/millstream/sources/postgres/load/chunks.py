"""A table in pieces that can be read in parallel: ranges of its pages, which need no key and no index."""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.postgres.driver import pq, psycopg, sql
from millstream.postgres.locked_names import MovedError, Named, hold, require
from millstream.sources.postgres.load.exported_snapshot import import_snapshot
from millstream.sources.postgres.server.planned_code import refuse_planned_code
from millstream.sources.postgres.server.reading_errors import lock_error, moved_error, reading_error
from millstream.sources.postgres.server.relations import Relation, RelationKind, read_relations
from millstream.sources.postgres.values.decode import BATCH_BYTES, read_csv
from millstream.sources.postgres.values.types import MirrorColumn, text_of

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_ROWS = 250_000
"""About a second of reading: enough to make a connection's cost small, few enough to distribute evenly."""

_MAX_CHUNKS = 2_000
_ROWS_AT_ONCE = 200  # Python's work per row is a good part of the total
_ROWS_PER_PAGE = 60.0  # where the server has no statistics yet


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a relation: all of them, or those on some pages of one of its leaves.

    Args:
        source: the relation that has the rows, as it was found.
        is_only: leave out what inherits from it, which has chunks of its own.
        first_page, end_page: the range; None leaves that side open.
        rows, size_bytes: estimates.
        trusted: roles whose functions may run when it is read.
    """

    source: Named
    is_only: bool
    first_page: int | None
    end_page: int | None
    rows: int
    size_bytes: int
    trusted: tuple[str, ...] = ()

    def query(self, columns: Sequence[MirrorColumn]) -> sql.Composed:
        """The SELECT of some columns."""
        items = sql.SQL(", ").join(text_of(c, sql.Identifier(c.name)) for c in columns)
        source = sql.SQL("ONLY {}" if self.is_only else "{}").format(self.source.identifier)
        ends = [(sql.SQL(">="), self.first_page), (sql.SQL("<"), self.end_page)]
        within = [
            sql.SQL("ctid {} {}::pg_catalog.tid").format(operator, sql.Literal(f"({page},0)"))
            for operator, page in ends
            if page is not None
        ]
        where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(within) if within else sql.SQL("")
        return sql.SQL("SELECT {} FROM {}{}").format(items, source, where)


_SIZES = """
SELECT c.oid::bigint, c.relkind::text, c.reltuples::float8, c.relpages,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid),
       coalesce((SELECT bool_and(has_column_privilege(c.oid, k.name, 'SELECT')) FROM unnest(%s::text[]) k(name)), true)
FROM pg_class c WHERE c.oid = ANY(%s) ORDER BY c.oid
"""


def chunks(
    connection: Connection,
    relation: Relation,
    columns: Sequence[MirrorColumn] = (),
    target_rows: int = TARGET_ROWS,
    trusted: tuple[str, ...] = (),
) -> list[Chunk]:
    """Pieces of about `target_rows` rows that make up the relation, even while rows are added to it.

    Args:
        columns: what will be read; if the role may read them from a partitioned table, but not from its partitions,
            the table is one piece.
        trusted: roles whose functions may run when it is read.

    Raises:
        MillstreamError: SOURCE_MISSING; SOURCE_CHANGED if its name means another relation now; UNTRUSTED_CODE.
    """
    # as the connection's snapshot sees it: partitions come and go
    now = read_relations(connection, [relation.oid]).get(relation.oid)
    if now is None:
        raise MillstreamError(Code.SOURCE_MISSING, f"{relation.qualified} was dropped")
    relation = now
    if relation.kind is RelationKind.VIEW:
        return [_view(connection, relation)]
    refuse_planned_code(connection, relation.oid, relation.qualified, trusted)
    leaves = {leaf.oid: leaf for leaf in relation.leaves}
    sizes = connection.execute(_SIZES, [[c.name for c in columns], list(leaves)]).fetchall()
    total = sum(_expected_rows(rows, pages_then, pages) for _, _, rows, pages_then, pages, *_ in sizes)
    # a refresh of a materialized view replaces its pages for older snapshots, too
    is_whole = relation.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED)
    if is_whole or not all(may_read for *_, may_read in sizes):
        size_bytes = sum(size or 0 for *_, size, _ in sizes)
        return [Chunk(relation.named, False, None, None, total, size_bytes, trusted)]
    target_rows = max(target_rows, int(total / _MAX_CHUNKS))
    found: list[Chunk] = []
    for oid, kind, rows_then, pages_then, pages, size_bytes, _ in sizes:
        leaf = leaves[oid]
        rows = _expected_rows(rows_then, pages_then, pages)
        if kind != "r":  # a foreign partition
            found.append(Chunk(leaf.named, False, None, None, rows, size_bytes or 0, trusted))
            continue
        step = max(1, int(pages * target_rows / rows)) if rows else 1
        starts = [*range(0, pages, step), None] if rows > target_rows else [0, None]
        for first, end in pairwise(starts):
            share = ((end or pages) - (first or 0)) / pages if pages else 0.0
            # the first and the last piece have no bound: pages may be added
            found.append(
                Chunk(leaf.named, True, first or None, end, int(rows * share), int(size_bytes * share), trusted)
            )
    return found


def read_chunk(
    address: Address, snapshot_name: str, chunk: Chunk, columns: Sequence[MirrorColumn], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece as of an exported snapshot.

    Raises:
        MillstreamError: SNAPSHOT_LOST, LOCK_TIMEOUT, PRIVILEGE_MISSING, DATABASE_UNREACHABLE, VALUE_UNSUPPORTED;
            SOURCE_CHANGED if the name of its relation means another one now; UNTRUSTED_CODE.
    """
    return read_chunks(address, snapshot_name, [chunk], columns, batch_bytes)


def read_chunks(
    address: Address,
    snapshot_name: str,
    wanted: Iterable[Chunk],
    columns: Sequence[MirrorColumn],
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As `read_chunk`, for several pieces one after the other over one connection."""
    with connect(address) as connection:
        for chunk in wanted:
            try:
                # Before the snapshot is imported: the planner also knows indexes that are newer than it. A view is
                # read on purpose, and consists of its owner's code.
                if chunk.source.kind != RelationKind.VIEW:
                    refuse_planned_code(connection, chunk.source.oid, chunk.source.qualified, chunk.trusted)
                import_snapshot(connection, snapshot_name)
                hold(connection, chunk.source, forbidden=chunk.source.forbidden(only=chunk.is_only))
                yield from read_csv(_copied(connection, chunk.query(columns)), columns, batch_bytes)
                require(connection, [chunk.source])  # its schema may have been renamed and replaced
                connection.execute("ROLLBACK")
            except MovedError as e:
                raise moved_error(str(e)) from e
            except psycopg.Error as e:
                raise reading_error(address, e, chunk.source.qualified, kind=chunk.source.kind) from e


def _copied(connection: Connection, query: sql.Composed) -> Iterator[bytes]:
    """The output of a COPY, some rows at a time.

    psycopg's own loop costs a microsecond per row, twice the server's work.
    """
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query)
    pgconn = connection.pgconn
    begun = pgconn.exec_(statement.as_bytes(connection))
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(begun)
    is_done, rows = False, list[bytes]()
    read, add = pgconn.get_copy_data, rows.append
    selector = selectors.DefaultSelector()
    selector.register(pgconn.socket, selectors.EVENT_READ)
    try:
        while True:
            size, data = read(1)
            if size > 0:
                add(bytes(data))
            elif size == 0:
                if len(rows) >= _ROWS_AT_ONCE:
                    yield b"".join(rows)
                    rows.clear()
                selector.select()
                pgconn.consume_input()
            else:
                break
        if rows:
            yield b"".join(rows)
        while (result := pgconn.get_result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)
        is_done = True
    finally:
        selector.close()
        if not is_done:
            pgconn.finish()  # an unfinished COPY makes the connection unusable


def _view(connection: Connection, relation: Relation) -> Chunk:
    """A view as one piece: it has no pages, and only a plan estimates its rows."""
    source, rows = relation.named, 0
    counted = sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}").format(source.identifier)
    try:
        # A missing right is reported when the view is read; the transaction may have other relations to read.
        with suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            hold(connection, source, forbidden=source.forbidden())
            row = connection.execute(counted).fetchone()
            assert row is not None
            rows = int(row[0][0]["Plan"]["Plan Rows"])
    except MovedError as e:
        raise moved_error(str(e)) from e
    except psycopg.errors.LockNotAvailable as e:
        raise lock_error(source.qualified) from e
    return Chunk(source, False, None, None, rows, rows * 100)


def _expected_rows(rows_then: float, pages_then: int, pages: int | None) -> int:
    if pages is None:  # a foreign table; its rows are known if it was analyzed
        return max(0, int(rows_then))
    per_page = rows_then / pages_then if pages_then > 0 and rows_then >= 0 else _ROWS_PER_PAGE
    return int(per_page * pages)
