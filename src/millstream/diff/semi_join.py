"""The delta rule of the semi join: EXISTS, IN, LEFT SEMI JOIN.

Semantics: the rows of the left input with a partner in the right one, each as often as it is there.
Delta rule: `delta(L ⋉ R) = new(L) ⋉ delta(R), weighted by [n > 0] − [n − d > 0]  +  delta(L), weighted by [n − d > 0]`,
    with `n` the number of partners of a row now and `d` its change: as the anti join's.
State kept: none; `n` is counted for the affected rows only. Where the right input is joined together, the columns of
    the condition, with the number of rows of each value, are a hidden stage, and the join reads that.
Cost: one probe of the right input for the affected rows, and one of the left input where the right one changed.
NULL and duplicate behaviour: as the anti join's.
Falls back when: never.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.diff.anti_join import filtering_join
from millstream.diff.base import Difference, rule
from millstream.ops import Relation, SemiJoin
from millstream.ops.expressions import ONE, ZERO, compare, when


@rule(SemiJoin, "rows that gain their first or lose their last partner")
def semi_join(difference: Difference, relation: Relation) -> Relation | None:
    """See the module."""
    assert isinstance(relation, SemiJoin)
    return filtering_join(difference, relation, lambda count: when(compare(exp.GT, count, ZERO), ONE, ZERO))
