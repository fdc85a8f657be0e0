"""The delta rule of the semi join: EXISTS, IN, LEFT SEMI JOIN.

Semantics: the rows of the left input with a partner in the right one, each as often as it occurs in the left input.
Delta rule: `delta(L ⋉ R) = new(L) ⋉ delta(R), weighted by [n > 0] − [n − d > 0]  +  delta(L), weighted by [n − d > 0]`,
    with `n` the number of partners of a row now and `d` its change, as for the anti join.
State kept: none; `n` is counted for the affected rows only. If the right input is itself a join, a hidden stage stores
    the columns of the condition with the number of rows of each value, and the semi join reads that stage.
Cost: one probe of the right input for the affected rows, and one of the left input if the right one changed.
NULL and duplicate behaviour: as for the anti join.
Falls back when: never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.diff.anti_join import filtering_join
from millstream.ops import Relation, SemiJoin
from millstream.ops.expressions import ONE, ZERO, compare, when

if TYPE_CHECKING:
    from millstream.diff.difference import Difference


def semi_join(difference: Difference, relation: SemiJoin) -> Relation | None:
    """See the module."""
    return filtering_join(difference, relation, lambda count: when(compare(exp.GT, count, ZERO), ONE, ZERO))
