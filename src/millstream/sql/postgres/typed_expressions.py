"""Spark expressions with their PostgreSQL type."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from millstream.sql.postgres import spark_builders as spark
from millstream.sql.postgres.spark_builders import ZERO, Node, number, op
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.types import INTERVAL, UNKNOWN, Type, numeric

NO_TREE = exp.Var(this="")
"""The tree of an interval or a row constructor, which are several expressions."""


@dataclass(frozen=True, slots=True)
class Interval:
    """PostgreSQL's interval: three whole numbers that are added one after the other."""

    months: Node = ZERO
    days: Node = ZERO
    micros: Node = ZERO

    @property
    def span(self) -> Node:
        """The length by which intervals are compared, in microseconds: a month has 30 days, a day 24 hours."""
        days = op(op(cast(self.months, numeric(20, 0)), "*", 30), "+", self.days)
        return op(op(days, "*", cast(86_400_000_000, numeric(12, 0))), "+", self.micros)


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A place inside a JSON text: found in one step, regardless of how many arrows lead there."""

    root: Node
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An expression and its type.

    Args:
        tree: the expression, translated to Spark.
        constant: the text of a literal, or the value of a whole number, for rules that need a constant.
        interval: the parts of an interval, which has no tree.
        place: where a json value was found, if arrows led to it.
        items: the items of a row constructor.
    """

    tree: Node
    type: Type
    constant: str | int | None = None
    interval: Interval | None = None
    place: JsonPlace | None = None
    items: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        """Whether it is the literal NULL."""
        return isinstance(self.tree, exp.Null)

    def of(self, type_: Type) -> Value:
        """The same expression with another type."""
        return replace(self, type=type_)


NULL_VALUE = Value(spark.NULL, UNKNOWN)


def interval(months: Node = ZERO, days: Node = ZERO, micros: Node = ZERO) -> Value:
    """An interval of three expressions."""
    return Value(NO_TREE, INTERVAL, interval=Interval(months, days, micros))


def constant_interval(parts: tuple[int, int, int]) -> Value:
    """An interval of the given months, days and microseconds."""
    return interval(*(number(part) for part in parts))


def row_of(items: tuple[Value, ...]) -> Value:
    """A row constructor."""
    return Value(NO_TREE, Type("record"), items=items)
