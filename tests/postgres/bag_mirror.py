"""Mirrors in memory: what landing windows in Delta tables comes to, without them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from bags import Bag, rows_of
from psycopg import sql

from millstream import naming
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.decode import batch_schema, read_csv
from millstream.sources.postgres.keyed import KeyedWindow, complete
from millstream.sources.postgres.relations import Relation
from millstream.sources.postgres.types import MirrorColumn
from millstream.sources.postgres.windows import Window

Said = tuple[str, ...]
Counts = Counter[Said]


class BagMirror:
    """The rows of one table, told apart by how Python prints them: 1.0 is not 1.00, nor -0.0 0.0."""

    def __init__(self, columns: tuple[MirrorColumn, ...], rows: pa.Table) -> None:
        self.columns = columns
        self._rows: dict[Said, dict[str, Any]] = {}
        self.counts: Counts = Counter()
        self.land(Window(rows.append_column(naming.WEIGHT, pa.array([1] * rows.num_rows, pa.int64()))))

    def land(self, window: Window | KeyedWindow) -> None:
        if isinstance(window, KeyedWindow):
            window = complete(window, self._rows_of(window.keys))
        assert not window.must_reread
        if window.truncated:
            self.counts.clear()
        for row in window.rows.to_pylist():
            weight = row.pop(naming.WEIGHT)
            said = _said(row)
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
        wanted = {_said(key) for key in keys.to_pylist()}
        found = [
            row
            for said, count in self.counts.items()
            for row in [self._rows[said]] * count
            if _said({n: row[n] for n in names}) in wanted
        ]
        return pa.Table.from_pylist(found, schema=batch_schema(self.columns))


def _said(row: dict[str, Any]) -> Said:
    return tuple(repr(value) for value in row.values())


def counts_of(rows: pa.Table) -> Counts:
    """The rows of a table, as mirrors count them."""
    return Counter(_said(row) for row in rows.to_pylist())


def copied(connection: Connection, relation: Relation, columns: tuple[MirrorColumn, ...]) -> pa.Table:
    """A table's rows as COPY gives them, under the transaction's snapshot if one is open."""
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(sql.Identifier(c.name) for c in columns), sql.Identifier(relation.schema, relation.name)
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        batches = list(read_csv((bytes(chunk) for chunk in copy), columns))
    return pa.Table.from_batches(batches, schema=batch_schema(columns))
