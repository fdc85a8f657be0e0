"""The delta rule of the anti join (NOT EXISTS, NOT IN, LEFT ANTI JOIN), on which outer joins are also based.

Semantics: the rows of the left input without a partner in the right one.
Delta rule: with `n(l)` the number of partners of a row now and `d(l)` its change,
    `delta(L ▷ R) = new(L) ⋉ delta(R), weighted by [n = 0] − [n − d = 0]  +  delta(L), weighted by [n − d = 0]`.
    A row enters the result when it loses its last partner, and leaves it when it gains its first. If the right input
    did not change, this is `delta(L) ▷ R`.
State kept: none; `n` is counted for the affected rows only. If the right input is itself a join, a hidden stage stores
    the columns of the condition with the number of rows of each value, and the anti join reads that stage.
Cost: one probe of the right input for the affected rows, and one of the left input if the right one changed.
NULL and duplicate behaviour: a NULL condition is no partner; partners are counted with their weights, so that
    removing one of two equal partners changes nothing.
Falls back when: never.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.diff.zset import distinct_columns, plus, weighted
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    UnionAll,
)
from millstream.ops.expressions import (
    ONE,
    ZERO,
    all_of,
    cast,
    coalesce,
    col,
    compare,
    keep,
    multiply,
    same,
    subtract,
    total,
    weight,
    when,
)
from millstream.ops.relations import WEIGHT_COLUMN, referenced

if TYPE_CHECKING:
    from millstream.diff.difference import Difference

NOW = Column("__ms_partners", "bigint")
CHANGE = Column("__ms_partners_change", "bigint")
# replaces the columns of a condition that does not mention the left input
ANY_ROW = Column("__ms_any", "int")
THERE = Column("__ms_there", "boolean")
PARTNERS_OF = "__ms_p"


def anti_join(difference: Difference, relation: AntiJoin) -> Relation | None:
    """See the module."""
    return filtering_join(difference, relation, _is_zero)


def filtering_join(
    difference: Difference, relation: AntiJoin | SemiJoin, belongs: Callable[[exp.Expr], exp.Expr]
) -> Relation | None:
    """The change of the result, to which a row belongs (1) or not (0) depending on the number of its partners."""
    left_change, right_change = difference.delta(relation.left), difference.delta(relation.right)
    if right_change is None:
        right = difference.new(relation.right)
        return None if left_change is None else dataclasses.replace(relation, left=left_change, right=right)
    rows = [_marked(SemiJoin(difference.new(relation.left), right_change, relation.condition), exp.true())]
    if left_change is not None:
        rows.append(_marked(left_change, exp.false()))
    affected = plus(rows)
    names = sorted(referenced(relation.condition) & {c.name for c in relation.left.columns})
    counts = _partners(difference, relation, affected, right_change, names)
    looked_up = OuterJoin("left", affected, counts, all_of(same(col(n), col(n + PARTNERS_OF)) for n in names))
    now = coalesce(col(NOW.name), ZERO)
    before = subtract(now, coalesce(col(CHANGE.name), ZERO))
    factor = when(col(THERE.name), subtract(belongs(now), belongs(before)), belongs(before))
    new_weight = Item(cast(multiply(weight(), factor), "bigint"), WEIGHT_COLUMN)
    return Filter(Project(looked_up, (*keep(relation.columns), new_weight)), compare(exp.NEQ, weight(), ZERO))


def _marked(rows: Relation, there: exp.Expr) -> Relation:
    """Affected rows: rows of the left input now (`there`), or of its change."""
    rows = weighted(rows)
    return Project(rows, (*keep(rows.columns), Item(there, THERE), *keep([WEIGHT_COLUMN])))


def _partners(
    difference: Difference, relation: AntiJoin | SemiJoin, rows: Relation, right_change: Relation, names: list[str]
) -> Relation:
    """For each affected value of the left columns in the condition: partners now, and their change."""
    if names:
        keys = distinct_columns(rows, names)
    else:
        keys = distinct_columns(Project(rows, (Item(cast(ONE, "int"), ANY_ROW),)), [ANY_ROW.name])
    now = _counted(difference.new(relation.right), ONE, ZERO)
    change = _counted(right_change, ZERO, weight())
    joined = InnerJoin((keys, UnionAll((now, change))), (relation.condition,), small_first=True)
    sums = tuple(Item(cast(total(col(c.name)), c.type), c) for c in (NOW, CHANGE))
    grouped = Aggregate(joined, keep(keys.columns), sums)
    renamed_keys = tuple(Item(col(c.name), Column(c.name + PARTNERS_OF, c.type)) for c in keys.columns)
    return Project(grouped, (*renamed_keys, *keep((NOW, CHANGE))))


def _counted(relation: Relation, now: exp.Expr, change: exp.Expr) -> Relation:
    """The right input, each row with what it adds to both counts."""
    counts = (Item(cast(now, "bigint"), NOW), Item(cast(change, "bigint"), CHANGE))
    return Project(relation, (*keep(relation.columns), *counts))


def _is_zero(count: exp.Expr) -> exp.Expr:
    return when(compare(exp.EQ, count, ZERO), ONE, ZERO)
