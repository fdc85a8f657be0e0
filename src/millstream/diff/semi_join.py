"""The delta rule of the semi join: EXISTS, IN, LEFT SEMI JOIN.

Semantics: the rows of the left input with a partner in the right one, each as often as it is there.
Delta rule: `delta(L ⋉ R) = delta(L) ⋉ new(R)  +  old(L) ⋉ delta(R), weighted by [n > 0] − [n − d > 0]`, with `n` the
    number of partners of a row now and `d` its change: the opposite of the anti join's.
State kept: none; `n` is counted for the affected rows only.
Cost: one probe of the right input for the affected rows, and one of the left input where the right one changed.
NULL and duplicate behaviour: as the anti join's.
Falls back when: never.
"""

from __future__ import annotations

from millstream.diff.anti_join import flips
from millstream.diff.base import Difference, rule
from millstream.diff.zset import negate, plus
from millstream.ops import Relation, SemiJoin


@rule(SemiJoin, "rows that gain their first or lose their last partner")
def semi_join(difference: Difference, relation: Relation) -> Relation | None:
    """See the module."""
    assert isinstance(relation, SemiJoin)
    left_change, right_change = difference.delta(relation.left), difference.delta(relation.right)
    parts: list[Relation] = []
    if left_change is not None:
        parts.append(SemiJoin(left_change, difference.new(relation.right), relation.condition))
    if right_change is not None:
        parts.append(negate(flips(difference, relation, left_change, right_change)))
    return plus(parts) if parts else None
