"""DuckDB as the front end's type oracle, and a dictionary of tables as its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
from sqlglot import exp

from millstream.ops import Column
from millstream.ops.render import to_sql
from millstream.sql.sources import Source, View

_SPARK_TYPES = {
    "INTEGER": "int",
    "BIGINT": "bigint",
    "HUGEINT": "decimal(38,0)",
    "SMALLINT": "smallint",
    "VARCHAR": "string",
    "DOUBLE": "double",
    "FLOAT": "float",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    '"NULL"': "int",  # DuckDB also stores a column of NULLs as an integer
}


_DUCK_TYPES = {"timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP"}


def _spark_type(type_: str) -> str:
    if type_.endswith("[]"):
        return f"array<{_spark_type(type_[:-2])}>"
    if type_.startswith("STRUCT"):
        return exp.DataType.build(type_, dialect="duckdb").sql("spark").lower().replace(" ", "")
    return _SPARK_TYPES.get(type_, type_.lower())


class DuckAnalyzer:
    """Describes queries with DuckDB."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        """The names and types of the query's columns."""
        rows = self._connection.execute("DESCRIBE " + to_sql(query, "duckdb")).fetchall()
        return tuple(Column(r[0], _spark_type(r[1])) for r in rows)

    def names(self, text: str) -> tuple[str, ...] | None:
        """None: DuckDB names expressions differently from Spark."""
        return None

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expr]) -> bool:
        """Whether DuckDB accepts the expressions in a WHERE clause; it does not detect volatile ones."""
        condition = exp.or_(*(exp.Is(this=exp.paren(e.copy()), expression=exp.Null()) for e in expressions))
        try:
            self.describe(exp.select("1").from_(query.subquery("q")).where(condition))
        except duckdb.Error:
            return False
        return True


@dataclass(frozen=True)
class Tables:
    """Source tables and views by name; implements the front end's `Sources`."""

    columns: Mapping[str, tuple[Column, ...]]
    views: Mapping[str, str] = field(default_factory=dict)

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The table or view whose name is the last part."""
        name = parts[-1].lower()
        if name in self.views:
            return View(name, self.views[name])
        return Source(name, self.columns[name]) if name in self.columns else None


def duck_type(type_: str) -> str:
    """A Spark type in DuckDB's spelling."""
    if type_.startswith("array<"):
        return duck_type(type_[len("array<") : -1]) + "[]"
    return _DUCK_TYPES.get(type_) or re.sub("string", "VARCHAR", type_)
