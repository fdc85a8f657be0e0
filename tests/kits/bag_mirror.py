"""Mirrors in memory: the result of landing changes in Delta tables, without the tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from psycopg import sql

from kits.bags import Bag, rows_of
from millstream import naming
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.values.decode import batch_schema, read_csv
from millstream.sources.postgres.values.types import MirrorColumn
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges, complete

Printed = tuple[str, ...]
Counts = Counter[Printed]


class BagMirror:
    """The rows of one table, distinguished by how Python prints them: 1.0 is not 1.00, nor -0.0 0.0."""

    def __init__(self, columns: tuple[MirrorColumn, ...], rows: pa.Table) -> None:
        self.columns = columns
        self._rows: dict[Printed, dict[str, Any]] = {}
        self.counts: Counts = Counter()
        self.land(TableChanges(rows.append_column(naming.WEIGHT, pa.array([1] * rows.num_rows, pa.int64()))))

    def land(self, changes: TableChanges | KeyedTableChanges) -> None:
        if isinstance(changes, KeyedTableChanges):
            changes = complete(changes, self._rows_of(changes.keys))
        assert not changes.must_reread
        if changes.truncated:
            self.counts.clear()
        for row in changes.rows.to_pylist():
            weight = row.pop(naming.WEIGHT)
            said = _printed(row)
            self._rows[said] = row
            self.counts[said] += weight
        gone = [said for said, count in self.counts.items() if count < 0]
        assert not gone, f"rows went that the mirror does not have: {gone[:5]}"
        self.counts = +self.counts
        self._rows = {said: self._rows[said] for said in self.counts}

    @property
    def bag(self) -> Bag:
        """The rows as other tests compare them."""
        rows = [self._rows[said] for said in self.counts]
        plain = rows_of(pa.Table.from_pylist(rows, schema=batch_schema(self.columns)))
        return Counter(dict(zip(plain, self.counts.values(), strict=True)))

    def _rows_of(self, keys: pa.Table) -> pa.Table:
        names = keys.column_names
        wanted = {_printed(key) for key in keys.to_pylist()}
        found = [
            row
            for said, count in self.counts.items()
            for row in [self._rows[said]] * count
            if _printed({n: row[n] for n in names}) in wanted
        ]
        return pa.Table.from_pylist(found, schema=batch_schema(self.columns))


def _printed(row: dict[str, Any]) -> Printed:
    return tuple(repr(value) for value in row.values())


def counts_of(rows: pa.Table) -> Counts:
    """The rows of a table, as mirrors count them."""
    return Counter(_printed(row) for row in rows.to_pylist())


def copied(connection: Connection, relation: Relation, columns: tuple[MirrorColumn, ...]) -> pa.Table:
    """A table's rows as COPY gives them, under the transaction's snapshot if one is open."""
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(sql.Identifier(c.name) for c in columns), sql.Identifier(relation.schema, relation.name)
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        batches = list(read_csv((bytes(chunk) for chunk in copy), columns))
    return pa.Table.from_batches(batches, schema=batch_schema(columns))
