"""Two ways to read a table's texts: a COPY, and a query whose results are left as the server wrote them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.values.decode import batch_schema, decode_texts, read_csv
from millstream.sources.postgres.values.types import MirrorColumn, mirror_columns, text_of


def columns_of(connection: Connection, table: str, *names: str) -> tuple[MirrorColumn, ...]:
    """What stands for some columns of a table, by default for all but `n`, which numbers its rows."""
    relation = find_relation(connection, table)
    return mirror_columns(relation, names or [c.name for c in relation.columns if c.name != "n"])


def query(table: str, columns: Sequence[MirrorColumn]) -> sql.Composed:
    items = sql.SQL(", ").join(text_of(c, sql.Identifier(c.name)) for c in columns)
    return sql.SQL("SELECT {} FROM {} ORDER BY n").format(items, sql.Identifier("public", table))


def by_copy(
    connection: Connection, table: str, columns: Sequence[MirrorColumn], batch_bytes: int = 1 << 20
) -> pa.Table:
    copied = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query(table, columns))
    with connection.cursor() as cursor, cursor.copy(copied) as copy:
        batches = list(read_csv((bytes(chunk) for chunk in copy), columns, batch_bytes))
    return pa.Table.from_batches(batches, schema=batch_schema(columns))


def by_query(connection: Connection, table: str, columns: Sequence[MirrorColumn]) -> pa.Table:
    with connection.cursor() as cursor:
        cursor.execute(query(table, columns))
        result = cursor.pgresult
        assert result is not None
        texts = [[_text(result.get_value(r, c)) for r in range(result.ntuples)] for c in range(result.nfields)]
    return decode_texts(columns, texts)


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()
