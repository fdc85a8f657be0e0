"""The delta rule of the n-ary inner join.

Semantics: the rows of the product of all inputs for which all conditions are true; weights multiply.
Delta rule: the sum over i of `new(1..i-1) ⋈ delta(i) ⋈ old(i+1..n)`; terms of inputs that did not change are omitted,
    and an unchanged input's old value is its new one.
State kept: none.
Cost: each term starts from its delta, so that every intermediate result is about the size of the change; the other
    inputs are probed, not shuffled.
NULL and duplicate behaviour: a NULL condition joins nothing; duplicates follow from the product of weights.
Falls back when: never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.diff.zset import plus
from millstream.ops import InnerJoin, Project, Relation
from millstream.ops.expressions import keep
from millstream.ops.join_order import connected_order
from millstream.ops.relations import WEIGHT_COLUMN

if TYPE_CHECKING:
    from millstream.diff.difference import Difference


def inner_join(difference: Difference, relation: InnerJoin) -> Relation | None:
    """See the module."""
    changes = [difference.delta(i) for i in relation.inputs]
    terms: list[Relation] = []
    for position, change in enumerate(changes):
        if change is None:
            continue
        others = [difference.new(r) for r in relation.inputs[:position]]
        others += [difference.old(r) for r in relation.inputs[position + 1 :]]
        terms.append(_term(relation, change, others))
    return plus(terms) if terms else None


def _term(relation: InnerJoin, change: Relation, others: list[Relation]) -> Relation:
    """One term, joined outward from the delta, with its columns in the order of the join."""
    ordered = connected_order(change, others, relation.conditions)
    joined = InnerJoin(tuple(ordered), relation.conditions, small_first=True)
    return Project(joined, keep((*relation.columns, WEIGHT_COLUMN)))
