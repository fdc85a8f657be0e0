"""Conditions, and where they are checked."""

from __future__ import annotations

from sqlglot import exp

from millstream.ops import Filter, InnerJoin, Relation
from millstream.ops.expressions import all_of
from millstream.ops.relations import referenced


def with_inner_negations(expression: exp.Expr) -> exp.Expr:
    """The expression with NOT moved inward to the subqueries, as Spark does: NOT IN is more than the negation of IN."""

    def moved(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Not) or not node.find(exp.Query):
            return node
        below = node.this.unnest()
        if isinstance(below, exp.Not):
            return exp.paren(with_inner_negations(below.this.unnest()))
        if isinstance(below, exp.And | exp.Or):
            other = exp.Or if isinstance(below, exp.And) else exp.And
            sides = (with_inner_negations(exp.Not(this=exp.paren(s.copy()))) for s in (below.this, below.expression))
            left, right = (exp.paren(side) for side in sides)
            return exp.paren(other(this=left, expression=right))
        return node

    return expression.transform(moved) if expression.find(exp.Query) else expression


def inner_join(left: Relation, right: Relation, conditions: list[exp.Expr]) -> Relation:
    """Join, flattening joins of joins: the n-ary delta rule needs all inputs side by side."""
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
    """Apply conjuncts as far down as an inner join allows."""
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
