"""The delta rule of the anti join (NOT EXISTS, NOT IN, LEFT ANTI JOIN), on which the outer joins rest as well.

Semantics: the rows of the left input without a partner in the right one.
Delta rule: with `n(l)` the number of partners of a row now and `d(l)` its change,
    `delta(L ▷ R) = delta(L) ▷ new(R)  +  old(L) ⋉ delta(R), weighted by [n = 0] − [n − d = 0]`.
    A row of the old left input enters the result when it lost its last partner, and leaves when it gained its first.
State kept: none; `n` is counted for the affected rows only.
Cost: one probe of the right input for the affected rows, and one of the left input where the right one changed.
NULL and duplicate behaviour: a NULL condition is no partner; partners are counted with their weights, so that
    removing one of two equal partners flips nothing.
Falls back when: never.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.diff.base import Difference, rule
from millstream.diff.zset import distinct_columns, negate, plus
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

NOW = Column("__ms_partners", "bigint")
CHANGE = Column("__ms_partners_change", "bigint")
# stands in for the columns of a condition that does not mention the left input
ANY_ROW = Column("__ms_any", "int")
PARTNERS_OF = "__ms_p"


@rule(AntiJoin, "rows that gain their first or lose their last partner")
def anti_join(difference: Difference, relation: Relation) -> Relation | None:
    """See the module."""
    assert isinstance(relation, AntiJoin)
    left_change, right_change = difference.delta(relation.left), difference.delta(relation.right)
    parts: list[Relation] = []
    if left_change is not None:
        parts.append(AntiJoin(left_change, difference.new(relation.right), relation.condition))
    if right_change is not None:
        parts.append(flips(difference, relation, left_change, right_change))
    return plus(parts) if parts else None


def flips(
    difference: Difference, relation: AntiJoin | SemiJoin, left_change: Relation | None, right_change: Relation
) -> Relation:
    """The rows of the old left input that lost their last partner, and with the opposite weight that gained a first."""
    affected: list[Relation] = [SemiJoin(difference.new(relation.left), right_change, relation.condition)]
    if left_change is not None:
        affected.append(negate(SemiJoin(left_change, right_change, relation.condition)))
    rows = plus(affected)
    names = sorted(referenced(relation.condition) & {c.name for c in relation.left.columns})
    counts = _partners(difference, relation, rows, right_change, names)
    looked_up = OuterJoin("left", rows, counts, all_of(same(col(n), col(n + PARTNERS_OF)) for n in names))
    now = coalesce(col(NOW.name), ZERO)
    before = subtract(now, coalesce(col(CHANGE.name), ZERO))
    flip = subtract(_is_zero(now), _is_zero(before))
    new_weight = Item(cast(multiply(weight(), flip), "bigint"), WEIGHT_COLUMN)
    return Filter(Project(looked_up, (*keep(relation.columns), new_weight)), compare(exp.NEQ, weight(), ZERO))


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
    """The right input with what each row adds to either count."""
    counts = (Item(cast(now, "bigint"), NOW), Item(cast(change, "bigint"), CHANGE))
    return Project(relation, (*keep(relation.columns), *counts))


def _is_zero(count: exp.Expr) -> exp.Expr:
    return when(compare(exp.EQ, count, ZERO), ONE, ZERO)
