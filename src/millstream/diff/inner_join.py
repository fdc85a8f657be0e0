"""The delta rule of the n-ary inner join.

Semantics: the rows of the product of all inputs for which all conditions are true; weights multiply.
Delta rule: the sum over i of `new(1..i-1) ⋈ delta(i) ⋈ old(i+1..n)`; terms of inputs that did not change are left out,
    and an unchanged input's old value is its new one.
State kept: none.
Cost: each term starts from its delta, so that every intermediate result is about the size of the change; the other
    inputs are probed, not shuffled.
NULL and duplicate behaviour: a NULL condition joins nothing; duplicates come out of the product of weights.
Falls back when: never.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.diff.base import Difference, rule
from millstream.diff.zset import plus
from millstream.ops import InnerJoin, Project, Relation
from millstream.ops.expressions import keep
from millstream.ops.relations import WEIGHT_COLUMN, referenced


@rule(InnerJoin, "sum of joins that start from a delta")
def inner_join(difference: Difference, relation: Relation) -> Relation | None:
    """See the module."""
    assert isinstance(relation, InnerJoin)
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


def connected_order(start: Relation, others: list[Relation], conditions: tuple[exp.Expr, ...]) -> list[Relation]:
    """Order inputs so that each is tied by an equality to those before it, wherever that is possible."""
    ordered, waiting = [start], list(others)
    reached = {c.name for c in start.columns}
    while waiting:
        best = max(waiting, key=lambda r: _ties(r, reached, conditions))
        waiting.remove(best)
        ordered.append(best)
        reached |= {c.name for c in best.columns}
    return ordered


def _ties(relation: Relation, reached: set[str], conditions: tuple[exp.Expr, ...]) -> tuple[bool, bool]:
    """Whether an equality, or else any condition, becomes usable by joining the relation next."""
    own = {c.name for c in relation.columns}
    usable = [c for c in conditions if (names := referenced(c)) & own and names & reached and names <= own | reached]
    return any(isinstance(c.unnest(), exp.EQ | exp.NullSafeEQ) for c in usable), bool(usable)
