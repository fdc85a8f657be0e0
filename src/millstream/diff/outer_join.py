"""The delta rule of LEFT and FULL outer joins.

Semantics: the inner join, plus each left row without a partner padded with NULLs, plus, for FULL, each such right row.
Delta rule: `delta(L ⟕ R) = delta(L ⋈ R) + pad(delta(L ▷ R))`; FULL adds `pad(delta(R ▷ L))`.
State kept: none.
Cost: that of the inner join and of the anti joins.
NULL and duplicate behaviour: as in those rules.
Falls back when: never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.diff.zset import plus
from millstream.ops import AntiJoin, InnerJoin, Item, OuterJoin, Project, Relation
from millstream.ops.expressions import col, keep, null
from millstream.ops.relations import WEIGHT_COLUMN

if TYPE_CHECKING:
    from millstream.diff.difference import Difference


def outer_join(difference: Difference, relation: OuterJoin) -> Relation | None:
    """See the module."""
    left, right = relation.left, relation.right
    parts = [
        difference.delta(InnerJoin((left, right), (relation.condition,))),
        _padded(relation, difference.delta(AntiJoin(left, right, relation.condition))),
    ]
    if relation.kind == "full":
        parts.append(_padded(relation, difference.delta(AntiJoin(right, left, relation.condition))))
    changes = [p for p in parts if p is not None]
    return plus(changes) if changes else None


def _padded(relation: OuterJoin, change: Relation | None) -> Relation | None:
    """Rows of one side as rows of the join, with the other side's columns NULL."""
    if change is None:
        return None
    present = {c.name for c in change.columns}
    items = tuple(Item(col(c.name) if c.name in present else null(c.type), c) for c in relation.columns)
    return Project(change, (*items, *keep([WEIGHT_COLUMN])))
