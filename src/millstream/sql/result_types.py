"""Types of intermediate results: the analyzer determines them over empty inputs, so that no table is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from millstream.ops import Column, Recursion, Relation, Scan, Table, render, transform
from millstream.ops.expressions import cast
from millstream.sql.sources import Analyzer

# What Spark's built-in aggregates return; others are analysed. (DuckDB, which runs the same rules in tests, returns
# HUGEINT and DOUBLE where Spark has BIGINT and DECIMAL, so that these must not depend on the engine.)
_INTEGRAL = {"tinyint", "smallint", "int", "bigint"}


def decimal_parts(type_: str) -> tuple[int, int] | None:
    """Precision and scale.

    >>> decimal_parts("decimal(10,2)")
    (10, 2)
    """
    if not type_.startswith("decimal("):
        return None
    precision, scale = type_[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def sum_type(argument: str) -> str | None:
    """The type of SUM over a column; None unless it is one of the known cases."""
    if argument in _INTEGRAL:
        return "bigint"
    if parts := decimal_parts(argument):
        return f"decimal({min(38, parts[0] + 10)},{parts[1]})"
    return "double" if argument in {"float", "double"} else None


def avg_type(argument: str) -> str | None:
    """The type of AVG over a column; None unless it is one of the known cases."""
    if argument in _INTEGRAL or argument in {"float", "double"}:
        return "double"
    if parts := decimal_parts(argument):
        return f"decimal({min(38, parts[0] + 4)},{min(38, parts[1] + 4)})"
    return None


def typed(analyzer: Analyzer, relation: Relation, expressions: Sequence[exp.Expr]) -> tuple[Column, ...]:
    """The types of expressions over a relation's columns; named by position."""
    known = {c.name: c.type for c in relation.schema}
    asked = [e for e in expressions if not isinstance(e, exp.Column)]
    answers: Iterator[Column] = iter(())
    if asked:
        items = [exp.alias_(e, f"c{i}", quoted=True) for i, e in enumerate(asked)]
        answers = iter(analyzer.describe(exp.select(*items).from_(empty(relation))))
    types = [known[e.name] if isinstance(e, exp.Column) else next(answers).type for e in expressions]
    return tuple(Column(f"c{i}", t) for i, t in enumerate(types))


def empty(relation: Relation) -> exp.Subquery:
    """A relation of the same columns without rows, as a FROM item."""
    items = [exp.alias_(cast(exp.null(), c.type), c.name, quoted=True) for c in relation.columns]
    if not items:
        items = [exp.alias_(exp.null(), "nothing")]
    return exp.select(*items).subquery("e")


def describe_relation(analyzer: Analyzer, relation: Relation) -> tuple[Column, ...]:
    """The types of all columns of a relation, computed from empty scans."""
    leaves: list[Table] = []

    def leaf(node: Relation) -> Relation:
        if not isinstance(node, Scan | Recursion):
            return node
        leaves.append(Table(f"t{len(leaves)}", node.schema))
        return leaves[-1]

    query = render(transform(relation, leaf))
    for table in leaves:
        query = query.with_(exp.to_identifier(table.name), as_=empty(table).this, copy=False)
    return analyzer.describe(query)
