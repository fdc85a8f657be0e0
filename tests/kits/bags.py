"""Tables and changes as bags, compared row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from psycopg import sql

from millstream.naming import WEIGHT
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.values.decode import batch_schema, read_csv
from millstream.sources.postgres.values.types import MirrorColumn

Bag: TypeAlias = "Counter[tuple[Any, ...]]"


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows, with values that can be hashed; NaN equals itself here."""
    columns = [[_hashable(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_hashable(v) for v in value)
    return "NaN" if value != value else value


def apply(bag: Bag, rows: pa.Table) -> None:
    """Add changed rows by their weights; what cancels out is gone."""
    for row in rows_of(rows.select([n for n in rows.column_names if n != WEIGHT] + [WEIGHT])):
        bag[row[:-1]] += row[-1]
        if not bag[row[:-1]]:
            del bag[row[:-1]]


def table_bag(connection: Connection, relation: Relation, columns: Sequence[MirrorColumn]) -> Bag:
    """What a table holds, by the decoder that changes go through too."""
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(sql.Identifier(c.name) for c in columns), sql.Identifier(relation.schema, relation.name)
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        batches = list(read_csv((bytes(chunk) for chunk in copy), columns))
    return Counter(rows_of(pa.Table.from_batches(batches, schema=batch_schema(columns))))


def assert_same(bag: Bag, wanted: Bag, what: str = "") -> None:
    """Fail with the difference, both ways."""
    if bag != wanted:
        missing, extra = Counter(wanted), Counter(bag)
        missing.subtract(bag)
        extra.subtract(wanted)
        missing, extra = +missing, +extra
        raise AssertionError(
            f"{what}: {missing.total()} missing {list(missing.items())[:5]}, {extra.total()} too many "
            f"{list(extra.items())[:5]}"
        )
