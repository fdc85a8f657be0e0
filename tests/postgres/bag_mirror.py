"""Mirrors in memory: what landing windows in Delta tables comes to, without them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from psycopg import sql

from millstream import naming
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.decode import batch_schema, read_csv
from millstream.sources.postgres.keyed import KeyedWindow, complete
from millstream.sources.postgres.relations import Relation
from millstream.sources.postgres.types import MirrorColumn
from millstream.sources.postgres.windows import Window

Bag = Counter[tuple[str, ...]]


class BagMirror:
    """The rows of one table."""

    def __init__(self, columns: tuple[MirrorColumn, ...], rows: pa.Table) -> None:
        self.columns = columns
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self.bag: Bag = Counter()
        self.land(Window(rows.append_column(naming.WEIGHT, pa.array([1] * rows.num_rows, pa.int64())), False))

    def land(self, window: Window | KeyedWindow) -> None:
        if isinstance(window, KeyedWindow):
            window = complete(window, self._rows_of(window.keys))
        if window.truncated:
            self.bag.clear()
        for row in window.rows.to_pylist():
            weight = row.pop(naming.WEIGHT)
            said = _hashable(row)
            self._rows[said] = row
            self.bag[said] += weight
        assert min(self.bag.values(), default=0) >= 0, "a row went that the mirror does not have"
        self.bag = +self.bag

    def _rows_of(self, keys: pa.Table) -> pa.Table:
        names = keys.column_names
        wanted = {_hashable(key) for key in keys.to_pylist()}
        found = [
            row
            for said, count in self.bag.items()
            for row in [self._rows[said]] * count
            if _hashable({n: row[n] for n in names}) in wanted
        ]
        return pa.Table.from_pylist(found, schema=batch_schema(self.columns))


def _hashable(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(repr(value) for value in row.values())


def bag_of(rows: pa.Table) -> Bag:
    return Counter(_hashable(row) for row in rows.to_pylist())


def copied(connection: Connection, relation: Relation, columns: tuple[MirrorColumn, ...]) -> pa.Table:
    """A table's rows as COPY gives them, under the transaction's snapshot if one is open."""
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(sql.Identifier(c.name) for c in columns), sql.Identifier(relation.schema, relation.name)
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        batches = list(read_csv((bytes(chunk) for chunk in copy), columns))
    return pa.Table.from_batches(batches, schema=batch_schema(columns))
