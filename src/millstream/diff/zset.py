"""Z-sets: relations whose rows carry a weight, and the few operations every rule is made of."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream import naming
from millstream.ops import Aggregate, Filter, Item, Project, Relation, UnionAll
from millstream.ops.expressions import ONE, ZERO, cast, col, compare, keep, total, weight
from millstream.ops.relations import WEIGHT_COLUMN, Column


def weighted(relation: Relation) -> Relation:
    """The relation with explicit weights; every row of a plain one counts once."""
    if relation.is_weighted:
        return relation
    return Project(relation, (*keep(relation.columns), Item(cast(ONE, "bigint"), WEIGHT_COLUMN)))


def negate(relation: Relation) -> Relation:
    """All rows with the opposite weight."""
    return scale(weighted(relation), exp.Neg(this=weight()))


def scale(relation: Relation, new_weight: exp.Expr) -> Relation:
    """The same rows under another weight."""
    return Project(relation, (*keep(relation.columns), Item(new_weight, WEIGHT_COLUMN)))


def plus(relations: Sequence[Relation]) -> Relation:
    """The sum of Z-sets of equal columns."""
    parts = [weighted(r) for r in relations]
    return parts[0] if len(parts) == 1 else UnionAll(tuple(parts))


def consolidate(relation: Relation) -> Relation:
    """The net effect: each distinct row once, with the sum of its weights, rows of weight zero dropped."""
    summed = Aggregate(relation, keep(relation.columns), (Item(cast(total(weight()), "bigint"), WEIGHT_COLUMN),))
    return Filter(summed, compare(exp.NEQ, weight(), ZERO))


def distinct_columns(relation: Relation, names: Sequence[str]) -> Relation:
    """The distinct values of some columns, without weights."""
    columns = {c.name: c for c in relation.columns}
    return Aggregate(relation, keep(columns[n] for n in names), ())


def renamed(relation: Relation, suffix: str) -> Relation:
    """The same rows with a suffix to all names, for joining a relation with its like."""
    named = [c if c.name == naming.WEIGHT else Column(c.name + suffix, c.type) for c in relation.schema]
    return Project(relation, tuple(Item(col(c.name), n) for c, n in zip(relation.schema, named, strict=True)))
