"""Tables that are read by chunks under an exported snapshot, while others write to them."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from kits.shops import Shop
from millstream.sources.postgres.load.chunks import chunks, read_chunk
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.server.relations import Relation, find_relation
from millstream.sources.postgres.values.decode import batch_schema
from millstream.sources.postgres.values.types import MirrorColumn, mirror_columns


def relation_of(shop: Shop, name: str) -> tuple[Relation, tuple[MirrorColumn, ...]]:
    with shop.connect() as connection:
        found = find_relation(connection, name)
    return found, mirror_columns(found)


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def by_pieces(
    snapshot: ExportedSnapshot, relation: Relation, columns: Sequence[MirrorColumn], target_rows: int
) -> pa.Table:
    """All pieces, each read as a worker elsewhere would read it."""
    read: list[pa.RecordBatch] = []
    for piece in chunks(snapshot.connection, relation, columns, target_rows):
        piece, address = pickle.loads(pickle.dumps((piece, snapshot.address)))
        read += read_chunk(address, snapshot.name, piece, columns, batch_bytes=1 << 14)
    return pa.Table.from_batches(read, schema=batch_schema(columns))


def at_once(snapshot: ExportedSnapshot, relation: Relation) -> Counter[tuple[Any, ...]]:
    """What the exporting transaction itself sees."""
    everything = sql.SQL("SELECT * FROM {}").format(sql.Identifier(relation.schema, relation.name))
    return Counter(snapshot.connection.execute(everything).fetchall())


@contextmanager
def writers(shop: Shop, table: str, count: int = 3) -> Iterator[None]:
    """Sessions that insert, move, change and delete rows of (id, k, v) all the time, and roll some of it back."""
    stop = threading.Event()

    def write(number: int) -> None:
        with shop.owner() as owner:
            name, turn = sql.Identifier(table), 0
            while not stop.is_set():
                turn += 1
                statements = [
                    sql.SQL("INSERT INTO {} SELECT i, i % 3, 'new' FROM generate_series(1, 50) i").format(name),
                    sql.SQL("UPDATE {} SET v = v || '+', k = (k + 1) % 3 WHERE id % 37 = {}").format(name, turn % 37),
                    sql.SQL("DELETE FROM {} WHERE id % 41 = {} AND v <> 'old'").format(name, turn % 41),
                ]
                try:
                    with owner.transaction(force_rollback=turn % 5 == 0):
                        for statement in statements[number:] + statements[:number]:
                            owner.execute(statement)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                    continue

    with ThreadPoolExecutor(count) as pool:
        writing = [pool.submit(write, n) for n in range(count)]
        try:
            yield
        finally:
            stop.set()
        for future in writing:
            future.result()


def fill(shop: Shop, table: str, rows: int) -> None:
    with shop.owner() as owner:
        query = sql.SQL("INSERT INTO {} SELECT i, i % 3, 'old' FROM generate_series(1, {}) i")
        owner.execute(query.format(sql.Identifier(table), rows))
        owner.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table)))
