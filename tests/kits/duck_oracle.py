"""DuckDB as a second judge: it runs the very queries over the very tables, in a tenth of the time Spark takes.

Its arithmetic is its own: where Spark's decimals round to some digits, DuckDB's quotients are doubles. So numbers with
a fraction are equal within a millionth, everything else exactly. Rows that ORDER BY leaves equal are taken in the order
of their other columns, as millstream does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
from sqlglot import exp, parse_one

from kits.read_back import ReadBack

if TYPE_CHECKING:
    from millstream import Millstream

Row = tuple[Any, ...]


class DuckOracle:
    """The tables of a lake, copied, and what queries give over them."""

    def __init__(self, ms: Millstream) -> None:
        self._read_back = ReadBack(ms)
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2; SET memory_limit = '1GB'; SET temp_directory = ''")
        self._texts: dict[str, str] = {}

    def copy(self, tables: Iterable[str]) -> None:
        """Take the tables as they are now."""
        for name in tables:
            rows = self._read_back.table(name).toArrow()
            self.db.register("rows", rows)
            self.db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM rows")
            self.db.unregister("rows")

    def difference(self, name: str, query: str) -> str | None:
        """How a stream table differs from its query; None where it does not."""
        if query not in self._texts:
            self._texts[query] = in_duckdb(query)
        wanted = _sorted(self.db.execute(self._texts[query]).fetchall())
        actual = _sorted(tuple(row) for row in self._read_back.table(name).collect())
        if len(actual) != len(wanted):
            return f"{name}: {len(actual)} rows, but {len(wanted)} are right"
        for left, right in zip(actual, wanted, strict=True):
            if not all(_equal(x, y) for x, y in zip(left, right, strict=True)):
                return f"{name}: {left}, but {right} is right"
        return None


def in_duckdb(query: str) -> str:
    """The query in DuckDB's words; averages as decimals, and nothing left open by a LIMIT."""
    tree = parse_one(query, dialect="spark")
    for average in list(tree.find_all(exp.Avg)):
        quotient = exp.Div(this=exp.Sum(this=average.this.copy()), expression=exp.Count(this=average.this.copy()))
        average.replace(exp.cast(quotient, "DECIMAL(19, 6)"))
    if isinstance(tree, exp.Select) and tree.args.get("limit"):
        order = tree.args["order"]
        others = [exp.Ordered(this=exp.column(name)) for name in tree.named_selects]
        order.set("expressions", [*order.expressions, *others])
    return tree.sql(dialect="duckdb")


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """In the order of what is exact, then of the numbers with a fraction, which may differ a little."""
    return sorted((tuple(row) for row in rows), key=lambda row: (_key(row, exact=True), _key(row, exact=False)))


def _key(row: Row, *, exact: bool) -> Sequence[tuple[bool, Any]]:
    return [(v is None, 0 if v is None else v) for v in row if isinstance(v, float | Decimal) != exact]


def _equal(left: object, right: object) -> bool:
    if isinstance(left, float | Decimal) and isinstance(right, float | Decimal):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return left == right
