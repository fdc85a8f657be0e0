"""Turn an outer join into an inner one if rows without a partner are dropped above it.

`t LEFT JOIN u ... WHERE u.c > 1` keeps no row that was padded with NULLs, and a scalar subquery compared in WHERE is
such a join. Spark's optimizer does this for the query itself; a delta gains more, since an inner join need not count
partners and is merged into the joins around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import assert_never

from sqlglot import exp

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    Opaque,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    UnionAll,
)
from millstream.ops.expressions import col, conjuncts, substitute
from millstream.ops.walk import occurrences
from millstream.sql.lowering.conditions import filtered, inner_join

_TRUE, _FALSE, _NULL, _VALUE = "true", "false", "null", "value"
_ANYTHING = frozenset({_TRUE, _FALSE, _NULL, _VALUE})

# operators that return NULL if one operand is NULL
_STRICT = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe,
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like,
)  # fmt: skip
_PASSING = (exp.Paren, exp.Cast, exp.TryCast, exp.Neg)


def outer_to_inner(relation: Relation) -> Relation:
    """The same result, without padded rows that are dropped above."""
    counts = occurrences((relation,))
    done: dict[Relation, Relation] = {}

    def visit(node: Relation, required: Sequence[exp.Expr]) -> Relation:
        if counts[node] == 1:
            return rebuilt(node, required)
        if node not in done:  # it is read in several places, each of which may require something else
            done[node] = rebuilt(node, ())
        return done[node]

    def rebuilt(node: Relation, required: Sequence[exp.Expr]) -> Relation:
        match node:
            case Filter():
                parts = conjuncts(node.predicate)
                below = visit(node.input, (*required, *parts))
                return node if below is node.input else filtered(below, parts)
            case Project():
                values = {item.column.name: item.expression for item in node.items}
                return node.over((visit(node.input, [substitute(r, values) for r in required]),))
            case InnerJoin():
                return node.over(tuple(visit(i, (*required, *node.conditions)) for i in node.inputs))
            case SemiJoin():
                on = conjuncts(node.condition)
                return node.over((visit(node.left, (*required, *on)), visit(node.right, on)))
            case AntiJoin():
                return node.over((visit(node.left, required), visit(node.right, conjuncts(node.condition))))
            case OuterJoin():
                return outer(node, required)
            case UnionAll() | Aggregate() | Opaque():
                return node.over(tuple(visit(child, ()) for child in node.children))
        assert_never(node)

    def outer(node: OuterJoin, required: Sequence[exp.Expr]) -> Relation:
        on = conjuncts(node.condition)
        keeps_left = not _rejects_nulls(required, node.right)
        keeps_right = node.kind == "full" and not _rejects_nulls(required, node.left)
        if not keeps_left and not keeps_right:
            wanted = (*required, *on)
            return inner_join(visit(node.left, wanted), visit(node.right, wanted), on)
        if node.kind == "full" and not keeps_left:
            kept, looked_up = visit(node.right, required), visit(node.left, on)
            turned = OuterJoin("left", kept, looked_up, node.condition)
            return Project(turned, tuple(Item(col(c.name), c) for c in node.columns))
        if keeps_right:
            return node.over((visit(node.left, ()), visit(node.right, ())))
        kept, looked_up = visit(node.left, required), visit(node.right, on)
        return dataclasses.replace(node, kind="left", left=kept, right=looked_up)

    return visit(relation, ())


def _rejects_nulls(required: Iterable[exp.Expr], side: Relation) -> bool:
    """Whether no row whose columns of that side are all NULL satisfies the required conditions."""
    padded = frozenset(c.name for c in side.columns)
    return any(_TRUE not in _outcomes(condition, padded) for condition in required)


def _outcomes(expression: exp.Expr, padded: frozenset[str]) -> frozenset[str]:
    """The possible values of an expression if some columns are NULL; any value if that is not known."""
    match expression:
        case exp.Column():
            return frozenset({_NULL}) if expression.name in padded else _ANYTHING
        case exp.Null():
            return frozenset({_NULL})
        case exp.Boolean():
            return frozenset({_TRUE if expression.this else _FALSE})
        case exp.Literal():
            return frozenset({_VALUE})
        case exp.Not():
            opposite = {_TRUE: _FALSE, _FALSE: _TRUE}
            return frozenset(opposite.get(o, o) for o in _outcomes(expression.this, padded))
        case exp.And() | exp.Or():
            weak, strong = (_TRUE, _FALSE) if isinstance(expression, exp.And) else (_FALSE, _TRUE)
            sides = [_outcomes(s, padded) for s in (expression.left, expression.right)]
            return frozenset(_combined(a, b, weak, strong) for a in sides[0] for b in sides[1])
        case exp.Is() if isinstance(expression.expression, exp.Null):
            return frozenset(_TRUE if o == _NULL else _FALSE for o in _outcomes(expression.this, padded))
        case exp.Case() if expression.this is None:
            return _case(expression, padded)
        case exp.Coalesce():
            return _first_not_null([expression.this, *expression.expressions], padded)
        case exp.Between():
            return _null_with([expression.this], padded)
    if isinstance(expression, _STRICT):
        return _null_with([expression.left, expression.right], padded)
    if isinstance(expression, _PASSING):
        below = _outcomes(expression.this, padded)
        return below if isinstance(expression, exp.Paren) or below == {_NULL} else _ANYTHING
    return _ANYTHING


def _combined(left: str, right: str, weak: str, strong: str) -> str:
    """AND and OR in three-valued logic: `strong` determines the result, with `weak` the other side does."""
    if strong in (left, right):
        return strong
    return right if left == weak else left


def _case(expression: exp.Case, padded: frozenset[str]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for branch in expression.args["ifs"]:
        condition = _outcomes(branch.this, padded)
        if _TRUE in condition or _VALUE in condition:
            found |= _outcomes(branch.args["true"], padded)
        if condition == {_TRUE}:
            return found
    default = expression.args.get("default")
    return found | (_outcomes(default, padded) if default is not None else {_NULL})


def _first_not_null(items: Iterable[exp.Expr], padded: frozenset[str]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for item in items:
        outcomes = _outcomes(item, padded)
        found |= outcomes - {_NULL}
        if _NULL not in outcomes:
            return found
    return found | {_NULL}


def _null_with(operands: Iterable[exp.Expr], padded: frozenset[str]) -> frozenset[str]:
    is_null = any(_outcomes(o, padded) == {_NULL} for o in operands)
    return frozenset({_NULL}) if is_null else _ANYTHING
