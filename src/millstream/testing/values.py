"""Rows as SQL text for DuckDB: one statement with literals is several times faster than bound parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]


def values(columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """A query that returns the rows, with columns of the given names and types.

    >>> values([("a", "INT")], [(1,), (None,)])
    'SELECT CAST("a" AS INT) AS "a" FROM (VALUES (1), (NULL)) AS v("a")'
    """
    items = ", ".join(f'CAST("{name}" AS {type_}) AS "{name}"' for name, type_ in columns)
    # VALUES needs a row: for a table without rows, one row is filtered out
    body = ", ".join(_tuple(row) for row in rows) or _tuple((None,) * len(columns))
    text = f"SELECT {items} FROM (VALUES {body}) AS v({quoted_names(name for name, _ in columns)})"
    return text if rows else f"{text} WHERE false"


def quoted_names(names: Iterable[str]) -> str:
    """A list of quoted column names."""
    return ", ".join('"' + n.replace('"', '""') + '"' for n in names)


def _tuple(row: Row) -> str:
    return f"({', '.join(map(_literal, row))})"


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool() | int() | Decimal():
            return str(value)
        case float():
            return repr(value)
        case datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    return "'" + str(value).replace("'", "''") + "'"
