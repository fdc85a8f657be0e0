"""Z-sets: relations whose rows have a weight, and the few operations that all rules use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sqlglot import exp

from millstream import naming
from millstream.ops import Aggregate, Column, Filter, Item, Project, Relation, UnionAll
from millstream.ops.expressions import ONE, ZERO, all_of, cast, col, compare, keep, same, total, weight
from millstream.ops.relations import WEIGHT_COLUMN

_FLOATING = re.compile(r"\b(float|double)\b", re.IGNORECASE)
_KEY, _TEXT = "__ms_same_", "__ms_said_"  # prefixes of numbered columns that distinguish rows


def weighted(relation: Relation) -> Relation:
    """The relation with explicit weights; without weights, every row counts once."""
    if relation.is_weighted:
        return relation
    return Project(relation, (*keep(relation.columns), Item(cast(ONE, "bigint"), WEIGHT_COLUMN)))


def negate(relation: Relation) -> Relation:
    """All rows with the opposite weight."""
    return scale(weighted(relation), exp.Neg(this=weight()))


def scale(relation: Relation, new_weight: exp.Expr) -> Relation:
    """The same rows with another weight."""
    return Project(relation, (*keep(relation.columns), Item(new_weight, WEIGHT_COLUMN)))


def plus(relations: Sequence[Relation]) -> Relation:
    """The sum of Z-sets with equal columns."""
    parts = [weighted(r) for r in relations]
    return parts[0] if len(parts) == 1 else UnionAll(tuple(parts))


def consolidate(relation: Relation) -> Relation:
    """The net change: each row once, with the sum of its weights, without rows of weight zero.

    Rows are equal here if their bits are. GROUP BY treats -0.0 and 0.0 as equal and returns 0.0 for both; so columns
    with floats are grouped by the expressions of `identifying`, and their values are taken from any row of the group.
    """
    floats = [c for c in relation.columns if holds_floats(c)]
    keys = list(keep(c for c in relation.columns if c not in floats))
    for number, column in enumerate(floats):
        if column.type not in ("float", "double"):
            keys.append(Item(col(column.name), Column(f"{_KEY}{number}", column.type)))
        keys.append(Item(_text(column.name), Column(f"{_TEXT}{number}", "string")))
    values = [Item(cast(exp.AnyValue(this=col(c.name)), c.type), c) for c in floats]
    summed = Aggregate(relation, tuple(keys), (*values, Item(cast(total(weight()), "bigint"), WEIGHT_COLUMN)))
    net = Filter(summed, compare(exp.NEQ, weight(), ZERO))
    return Project(net, keep((*relation.columns, WEIGHT_COLUMN))) if floats else net


def identifying(columns: Iterable[Column]) -> list[exp.Expr]:
    """Expressions that have equal values for two rows exactly if the rows have equal bits.

    Equal values differ at most in the signs of zeros, which their texts show.
    """
    found: list[exp.Expr] = []
    for column in columns:
        found += [col(column.name), _text(column.name)] if holds_floats(column) else [col(column.name)]
    return found


def identical(columns: Iterable[Column], left: str, right: str) -> exp.Expr:
    """Whether two rows, whose columns have these suffixes, have the same bits."""
    conditions: list[exp.Expr] = []
    for column in columns:
        conditions.append(same(col(column.name + left), col(column.name + right)))
        if holds_floats(column):
            conditions.append(same(_text(column.name + left), _text(column.name + right)))
    return all_of(conditions)


def holds_floats(column: Column) -> bool:
    """Whether equal values of a column may have different bits: -0.0 and 0.0.

    >>> [holds_floats(Column("c", type_)) for type_ in ("double", "array<struct<x:float>>", "decimal(10,2)")]
    [True, True, False]
    """
    return _FLOATING.search(column.type) is not None


def _text(name: str) -> exp.Expr:
    return cast(col(name), "string")


def distinct_columns(relation: Relation, names: Sequence[str]) -> Relation:
    """The distinct values of some columns, without weights."""
    columns = {c.name: c for c in relation.columns}
    return Aggregate(relation, keep(columns[n] for n in names), ())


def renamed(relation: Relation, suffix: str) -> Relation:
    """The same rows with a suffix on all names, to join a relation with one that has the same names."""
    named = [c if c.name == naming.WEIGHT else Column(c.name + suffix, c.type) for c in relation.schema]
    return Project(relation, tuple(Item(col(c.name), n) for c, n in zip(relation.schema, named, strict=True)))
