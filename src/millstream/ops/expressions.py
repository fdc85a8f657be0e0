"""Small builders for scalar expressions, so that rules read like formulas.

Expressions are shared, not copied, so never change one and never use its parent. `render` prints copies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from sqlglot import exp
from sqlglot.errors import ParseError

from millstream import naming
from millstream.ops.operator import Column, Item
from millstream.ops.relations import Relation

ONE = exp.Literal.number(1)
ZERO = exp.Literal.number(0)

# nodes that never need parentheses
_ATOMS = (exp.Column, exp.Literal, exp.Null, exp.Boolean, exp.Paren, exp.Cast, exp.Anonymous, exp.AggFunc)


def col(name: str, table: str | None = None) -> exp.Column:
    """A reference to a column."""
    return exp.Column(this=_quoted(name), table=_quoted(table) if table else None)


def weight(table: str | None = None) -> exp.Column:
    """A reference to the weight."""
    return col(naming.WEIGHT, table)


def keep(columns: Iterable[Column]) -> tuple[Item, ...]:
    """Columns that pass through a projection or a grouping unchanged."""
    return tuple(Item(col(c.name), c) for c in columns)


def add_columns(relation: Relation, items: Iterable[Item]) -> tuple[Item, ...]:
    """All columns of a relation, including the weight, and further ones."""
    return (*keep(relation.schema), *items)


def cast(expression: exp.Expr, type_: str) -> exp.Cast:
    """`CAST(expression AS type_)`."""
    return exp.Cast(this=expression, to=_type(type_))


def null(type_: str) -> exp.Cast:
    """A NULL of a type."""
    return cast(exp.Null(), type_)


def same(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Null-safe equality."""
    return exp.NullSafeEQ(this=left, expression=right)


def conjuncts(predicate: exp.Expr) -> list[exp.Expr]:
    """The parts that all have to be true."""
    predicate = predicate.unnest()
    if isinstance(predicate, exp.And):
        return [*conjuncts(predicate.left), *conjuncts(predicate.right)]
    return [predicate]


def all_of(conditions: Iterable[exp.Expr]) -> exp.Expr:
    """The conjunction; true without conditions."""
    items = list(conditions)
    return exp.and_(*items, copy=False) if items else exp.true()


def any_of(conditions: Iterable[exp.Expr]) -> exp.Expr:
    """The disjunction; false without conditions."""
    items = list(conditions)
    return exp.or_(*items, copy=False) if items else exp.false()


def not_(condition: exp.Expr) -> exp.Expr:
    """The negation."""
    return exp.Not(this=_paren(condition))


def when(condition: exp.Expr, then: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Case:
    """`CASE WHEN condition THEN then [ELSE otherwise] END`."""
    return cases((condition, then), otherwise=otherwise)


def cases(*branches: tuple[exp.Expr, exp.Expr], otherwise: exp.Expr | None = None) -> exp.Case:
    """`CASE WHEN ... THEN ... WHEN ... [ELSE otherwise] END`."""
    ifs = [exp.If(this=condition, true=then) for condition, then in branches]
    return exp.Case(ifs=ifs, default=otherwise) if otherwise is not None else exp.Case(ifs=ifs)


def coalesce(expression: exp.Expr, default: exp.Expr) -> exp.Coalesce:
    """`COALESCE(expression, default)`."""
    return exp.Coalesce(this=expression, expressions=[default])


def add(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The sum, in parentheses."""
    return _paren(exp.Add(this=left, expression=right))


def subtract(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The difference, in parentheses."""
    return _paren(exp.Sub(this=left, expression=right))


def multiply(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The product of two parenthesised operands."""
    return exp.Mul(this=_paren(left), expression=_paren(right))


def compare(kind: type[exp.Binary], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """A comparison, in parentheses."""
    return _paren(kind(this=left, expression=right))


def is_null(expression: exp.Expr) -> exp.Expr:
    """`expression IS NULL`."""
    return exp.Is(this=expression, expression=exp.Null())


def is_not_null(expression: exp.Expr) -> exp.Expr:
    """`NOT expression IS NULL`."""
    return exp.Not(this=is_null(expression))


def total(expression: exp.Expr) -> exp.Sum:
    """`SUM(expression)`."""
    return exp.Sum(this=expression)


def substitute(expression: exp.Expr, mapping: dict[str, exp.Expr]) -> exp.Expr:
    """Replace column references by name; a compound expression is put in parentheses."""

    def swap(node: exp.Expr) -> exp.Expr:
        return wrapped(mapping[node.name]) if isinstance(node, exp.Column) and node.name in mapping else node

    return expression.transform(swap)


def wrapped(expression: exp.Expr) -> exp.Expr:
    """The expression, in parentheses if it needs them as an operand."""
    return expression if isinstance(expression, _ATOMS) else _paren(expression)


@functools.cache
def _type(text: str) -> exp.DataType:
    """A Spark type; one that the parser does not know (VOID) or would alter (collations) is printed unchanged."""
    try:
        known = exp.DataType.build(text, dialect="spark")
    except ParseError:
        known = None
    if known is None or known.sql("spark").replace(" ", "").lower() != text.replace(" ", "").lower():
        return exp.DataType(this=exp.DType.USERDEFINED, kind=text.upper() if known is None else text)
    return known


def _paren(expression: exp.Expr) -> exp.Expr:
    return exp.Paren(this=expression)


def _quoted(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)
