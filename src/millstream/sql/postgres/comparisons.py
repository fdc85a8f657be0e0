"""Comparisons, BETWEEN, IN a list, and IS."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from millstream.sql.parse import bare_query
from millstream.sql.postgres import pattern_matches, subquery_tests
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce, compared, unify
from millstream.sql.postgres.functions import json as json_functions
from millstream.sql.postgres.functions.arrays import quantified
from millstream.sql.postgres.operands import OPERATORS, compare, maybe_not, quantifier, refuse_order
from millstream.sql.postgres.refusals import RefusalError, refuse_comparison
from millstream.sql.postgres.spark_builders import FALSE, TRUE, Node, and_, in_, is_, is_null, not_, op, or_
from millstream.sql.postgres.typed_expressions import NO_TREE, Value

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


def _comparison(self: Expressions, node: exp.Binary) -> Value:
    found = quantifier(node)
    if found is None:
        return compare(OPERATORS[type(node)], self.translate(node.this), self.translate(node.expression))
    left, operator = self.translate(node.this), OPERATORS[type(node)]
    operand, every = found
    if isinstance(operand, exp.Query):
        return subquery_tests.quantified_value(self, operator, left, operand, every)
    refuse_comparison(left.type)
    refuse_order(operator, left.type)
    return quantified(operator, left, self.translate(operand), every=every)


def _distinct(self: Expressions, node: exp.Binary) -> Value:
    left, right = self.translate(node.this), self.translate(node.expression)
    if left.items or right.items or t.INTERVAL in (left.type, right.type):
        raise RefusalError("IS DISTINCT FROM of rows or intervals")
    (a, b), type_ = compared(left, right)
    refuse_comparison(type_)
    same = op(a.tree, "<=>", b.tree)
    return Value(same if isinstance(node, exp.NullSafeEQ) else not_(same), t.BOOLEAN)


def _between(self: Expressions, node: exp.Between) -> Value:
    value, low, high = (self.translate(node.args[k]) for k in ("this", "low", "high"))

    def within(a: Value, b: Value) -> Node:
        return and_(compare(">=", value, a).tree, compare("<=", value, b).tree)

    test = within(low, high)
    if node.args.get("symmetric"):
        test = or_(test, within(high, low))
    return maybe_not(node, test)


def _in(self: Expressions, node: exp.In) -> Value:
    left = self.translate(node.this)
    query = node.args.get("query")
    if query is not None:
        return maybe_not(node, subquery_tests.in_value(self, left, bare_query(query)))
    values = [self.translate(e) for e in node.expressions]
    types = {v.type for v in (left, *values)}
    if left.items or t.INTERVAL in types:
        return maybe_not(node, _any_equal(left, values))
    if t.REAL in types and len(types) > 1:
        return maybe_not(node, _among_reals(left, list(zip(node.expressions, values, strict=True))))
    items, type_ = unify([left, *values])
    refuse_comparison(type_)
    return maybe_not(node, in_(items[0].tree, (v.tree for v in items[1:])))


def _any_equal(left: Value, values: list[Value]) -> Node:
    return or_(*(compare("=", left, v).tree for v in values))


def _among_reals(left: Value, values: list[tuple[exp.Expr, Value]]) -> Node:
    """Several constants are an array of the type that they share with the left side; other values are compared alone.

    So a real can be IN (0.1, 0.2) though it is neither = 0.1 nor = 0.2.
    """
    constants = [v for node, v in values if node.find(exp.Column, exp.Query) is None]
    if len(constants) < 2:
        return _any_equal(left, [v for _, v in values])
    others = [v for node, v in values if node.find(exp.Column, exp.Query) is not None]
    (_, *items), type_ = unify([left, *constants])
    (one, _), common = compared(left, Value(NO_TREE, type_))
    found = in_(one.tree, (coerce(i, common).tree for i in items))
    return or_(found, _any_equal(left, others)) if others else found


def _is(self: Expressions, node: exp.Is) -> Value:
    value = self.translate(node.this)
    if value.items:
        raise RefusalError("IS of a row", "test each of its columns")
    if isinstance(node.expression, exp.JSON):
        kind = str(node.expression.args.get("this") or "")
        json = value if value.type.is_json else coerce(value, t.TEXT)
        return maybe_not(node, json_functions.is_json(json, kind, unique=bool(node.expression.args.get("with_"))))
    if isinstance(node.expression, exp.Null):
        return maybe_not(node, is_null(value.interval.span if value.interval is not None else value.tree))
    if not isinstance(node.expression, exp.Boolean):
        raise RefusalError(f"IS {node.expression.sql(dialect='postgres')}")
    return maybe_not(node, is_(coerce(value, t.BOOLEAN).tree, TRUE if node.expression.this else FALSE))


_TWO = {"this", "expression"}
_NEGATED = {"negate"}
_BY_KIND: dict[type[exp.Expr], tuple[Callable[..., Value], set[str]]] = {
    **dict.fromkeys(OPERATORS, (_comparison, _TWO)),
    exp.NullSafeEQ: (_distinct, _TWO),
    exp.NullSafeNEQ: (_distinct, _TWO),
    exp.Between: (_between, {"this", "low", "high", "symmetric", *_NEGATED}),
    exp.In: (_in, {"this", "expressions", "query", *_NEGATED}),
    exp.Is: (_is, {*_TWO, *_NEGATED}),
    exp.Like: (pattern_matches.like, {*_TWO, *_NEGATED}),
    exp.ILike: (pattern_matches.like, {*_TWO, *_NEGATED}),
    exp.Escape: (pattern_matches.escape, _TWO),
    exp.RegexpLike: (pattern_matches.regexp, {*_TWO, *_NEGATED}),
    exp.RegexpILike: (pattern_matches.regexp, {*_TWO, *_NEGATED}),
    exp.SimilarTo: (pattern_matches.similar, {*_TWO, *_NEGATED}),
}
KINDS = {kind: known for kind, (_, known) in _BY_KIND.items()}


def rule_of(kind: type[exp.Expr]) -> Callable[[Any, Any], Value]:
    """The rule for a kind of comparison."""
    return _BY_KIND[kind][0]
