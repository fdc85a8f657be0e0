"""Conjuncts, and where they are checked."""

from __future__ import annotations

from sqlglot import exp

from millstream.ops import Filter, InnerJoin, Relation
from millstream.ops.expressions import all_of
from millstream.ops.relations import referenced


def conjuncts(predicate: exp.Expr) -> list[exp.Expr]:
    """The parts that all have to be true."""
    predicate = predicate.unnest()
    if isinstance(predicate, exp.Not) and isinstance(predicate.this.unnest(), exp.Or) and predicate.find(exp.Query):
        # as Spark does, since NOT IN is more than the negation of IN
        either = predicate.this.unnest()
        return [p for side in (either.left, either.right) for p in conjuncts(exp.Not(this=exp.paren(side.copy())))]
    if isinstance(predicate, exp.And):
        return [*conjuncts(predicate.left), *conjuncts(predicate.right)]
    return [predicate]


def inner_join(left: Relation, right: Relation, conditions: list[exp.Expr]) -> Relation:
    """Join, flattening joins of joins: the n-ary delta rule wants all inputs side by side."""
    inputs: list[Relation] = []
    collected: list[exp.Expr] = []
    for side in (left, right):
        if isinstance(side, InnerJoin):
            inputs += side.inputs
            collected += side.conditions
        else:
            inputs.append(side)
    return filtered(InnerJoin(tuple(inputs), tuple(collected)), conditions)


def filtered(relation: Relation, conditions: list[exp.Expr]) -> Relation:
    """Apply conjuncts as far down as an inner join lets them."""
    if not isinstance(relation, InnerJoin):
        return Filter(relation, all_of(conditions)) if conditions else relation
    inputs = list(relation.inputs)
    across: list[exp.Expr] = []
    for condition in conditions:
        names = referenced(condition)
        homes = [i for i, r in enumerate(inputs) if names & {c.name for c in r.schema}]
        if len(homes) == 1:
            inputs[homes[0]] = filtered(inputs[homes[0]], [condition])
        else:
            across.append(condition)
    return InnerJoin(tuple(inputs), (*relation.conditions, *across))
