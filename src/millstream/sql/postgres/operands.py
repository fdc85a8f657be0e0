"""Comparing two operands in their common type, including rows and intervals; and the operands of ANY and ALL."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.parse import bare_query
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce, compared
from millstream.sql.postgres.refusals import RefusalError, refuse_comparison
from millstream.sql.postgres.spark_builders import Node, and_, not_, op, or_
from millstream.sql.postgres.typed_expressions import Value

OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def compare(operator: str, left: Value, right: Value) -> Value:
    """`left operator right`."""
    if left.items or right.items:
        return _rows(operator, left, right)
    if t.INTERVAL in (left.type, right.type):
        one, two = (coerce(v, t.INTERVAL).interval for v in (left, right))
        assert one is not None
        assert two is not None
        return Value(op(one.span, operator, two.span), t.BOOLEAN)
    if left.type.is_integer and right.type.is_integer:  # PostgreSQL and Spark compare these by value
        return Value(op(left.tree, operator, right.tree), t.BOOLEAN)
    (a, b), type_ = compared(left, right)
    refuse_comparison(type_)
    if type_.name == "record" or type_.name not in t.KNOWN:
        raise RefusalError(f"a comparison of {type_}")
    refuse_order(operator, type_)
    if type_.element is not None and operator not in {"=", "<>"}:
        raise RefusalError(f"{type_} {operator} {type_}", "Spark sorts NULLs inside arrays before other elements")
    return Value(op(a.tree, operator, b.tree), t.BOOLEAN)


def refuse_order(operator: str, type_: t.Type) -> None:
    """Refuse to compare enums by order."""
    if type_.name == "enum" and operator not in {"=", "<>"}:
        raise RefusalError(f"{type_} {operator} {type_}", "an enum is ordered as it was declared: use CASE, or ::text")


def _rows(operator: str, left: Value, right: Value) -> Value:
    if len(left.items) != len(right.items):
        raise RefusalError("a comparison of rows of different lengths")
    pairs = list(zip(left.items, right.items, strict=True))
    if operator in {"=", "<>"}:
        connect = and_ if operator == "=" else or_
        return Value(connect(*(compare(operator, a, b).tree for a, b in pairs)), t.BOOLEAN)
    strict = operator[0]
    branches = []
    for i, (a, b) in enumerate(pairs):
        last = operator if i == len(pairs) - 1 else strict
        equal = [compare("=", x, y).tree for x, y in pairs[:i]]
        branches.append(and_(*equal, compare(last, a, b).tree))
    return Value(or_(*branches), t.BOOLEAN)


def maybe_not(node: exp.Expr, test: Node) -> Value:
    """The test, or its negation if the node includes a NOT."""
    return Value(not_(test) if node.args.get("negate") else test, t.BOOLEAN)


def quantifier(node: exp.Expr) -> tuple[exp.Expr, bool] | None:
    """The operand of ANY or ALL on the right side, and whether it is ALL."""
    right = node.args.get("expression")
    if isinstance(right, exp.Any | exp.All):
        operand = bare_query(right.this.unnest() if isinstance(right.this, exp.Paren) else right.this)
        return operand, isinstance(right, exp.All)
    if isinstance(right, exp.Anonymous) and str(right.this).upper() in {"ALL", "SOME", "ANY"} and right.expressions:
        operand = right.expressions[0]
        return bare_query(operand), str(right.this).upper() == "ALL"
    return None
