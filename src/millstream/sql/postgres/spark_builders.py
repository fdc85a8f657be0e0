"""Small builders of Spark expressions, so that translation rules read like formulas.

A call is an `Anonymous` node: sqlglot gives many functions a common meaning and prints some of them as another
function. Operators put parentheses around every operand that is not an atom, so the printed text has the structure of
the tree. Nodes are shared, not copied: no code changes a node or uses its parent, and a copy is printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

Node = exp.Expr
Operand = exp.Expr | int
"""A node, or a whole number that becomes a literal."""

# Nodes that never need parentheses.
_ATOMS = (
    exp.Anonymous,
    exp.Boolean,
    exp.Case,
    exp.Cast,
    exp.Column,
    exp.Dot,
    exp.Exists,
    exp.Extract,
    exp.Filter,
    exp.Identifier,
    exp.Literal,
    exp.Null,
    exp.Paren,
    exp.Star,
    exp.Subquery,
    exp.Trim,
    exp.Tuple,
    exp.Var,
    exp.Window,
    exp.WithinGroup,
)
_OPERATORS: dict[str, type[exp.Binary]] = {
    "+": exp.Add,
    "-": exp.Sub,
    "*": exp.Mul,
    "/": exp.Div,
    "%": exp.Mod,
    "DIV": exp.IntDiv,
    "&": exp.BitwiseAnd,
    "|": exp.BitwiseOr,
    "^": exp.BitwiseXor,
    "=": exp.EQ,
    "<>": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
    "<=>": exp.NullSafeEQ,
    "LIKE": exp.Like,
    "ILIKE": exp.ILike,
    "RLIKE": exp.RegexpLike,
}
NULL, TRUE, FALSE = exp.Null(), exp.true(), exp.false()
ZERO, ONE = exp.Literal.number(0), exp.Literal.number(1)
ITEM, OTHER, PLACE = (exp.to_identifier(name) for name in ("__ms_e", "__ms_f", "__ms_i"))
"""Variables of lambdas: names of the user's tables and columns never begin with this prefix."""


# Names and literals


def quoted_name(text: str) -> exp.Identifier:
    """A quoted name."""
    return exp.to_identifier(text, quoted=True)


def own_name(text: str) -> exp.Identifier:
    """A name of our own, which needs no quotes."""
    return exp.to_identifier(text, quoted=False)


def column(text: str, table: exp.Identifier | None = None) -> exp.Column:
    """A column, perhaps of a table."""
    return exp.Column(this=quoted_name(text), table=table)


def own_column(text: str, table: str | None = None) -> exp.Column:
    """A column that only our own queries have."""
    return exp.Column(this=own_name(text), table=own_name(table) if table else None)


def text(value: str) -> exp.Literal:
    """A string."""
    return exp.Literal.string(value)


def number(value: int | str) -> Node:
    """A number; the sign of a negative number is an operator."""
    digits = str(value)
    if digits.startswith("-"):
        return exp.Neg(this=exp.Literal.number(digits[1:]))
    return exp.Literal.number(digits)


def whole_number(node: Node) -> int | None:
    """The value of a literal whole number; None for other nodes."""
    if isinstance(node, exp.Neg):
        inner = whole_number(node.this)
        return -inner if inner is not None else None
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
        return int(node.this)
    return None


# Calls and casts


def fn(function: str, *args: Operand) -> exp.Anonymous:
    """A call of a Spark function."""
    return exp.Anonymous(this=function, expressions=[_node(a) for a in args])


def extract(part: str, node: Node) -> exp.Extract:
    """`EXTRACT(part FROM node)`."""
    return exp.Extract(this=exp.var(part), expression=node)


def trim(side: str, characters: Node, node: Node) -> exp.Trim:
    """`TRIM(side characters FROM node)`."""
    return exp.Trim(this=node, position=side, expression=characters)


# Arrays and structs


def array(*items: Operand) -> exp.Anonymous:
    """`ARRAY(item, ...)`."""
    return fn("ARRAY", *items)


def struct(fields: Iterable[tuple[str, Node]]) -> exp.Anonymous:
    """`NAMED_STRUCT('name', value, ...)`."""
    return fn("NAMED_STRUCT", *(part for field, value in fields for part in (text(field), value)))


def field(node: Node, identifier: exp.Identifier) -> exp.Dot:
    """`node.identifier`."""
    return exp.Dot(this=wrapped(node), expression=identifier)


def own_field(node: Node, identifier: str) -> exp.Dot:
    """A field of a struct that we build."""
    return field(node, own_name(identifier))


def lambda_(body: Node, *variables: exp.Identifier) -> exp.Lambda:
    """`(variable, ...) -> body`."""
    return exp.Lambda(this=body, expressions=list(variables))


def each(items: Node, body: Node) -> exp.Anonymous:
    """`body` for each ITEM of an array."""
    return fn("TRANSFORM", items, lambda_(body, ITEM))


def kept(items: Node, condition: Node) -> exp.Anonymous:
    """The ITEMs of an array that satisfy a condition."""
    return fn("FILTER", items, lambda_(condition, ITEM))


def let(value: Node, body: Node) -> exp.Anonymous:
    """`body` with ITEM as the value, which is then computed once."""
    return fn("GET", each(array(value), body), 0)


# Operators and conditions


def wrapped(node: Node) -> Node:
    """The node, in parentheses if it needs them as an operand."""
    return node if isinstance(node, _ATOMS) else exp.Paren(this=node)


def op(left: Operand, operator: str, right: Operand) -> Node:
    """`left operator right`."""
    extra = {"typed": False, "safe": True} if operator == "/" else {}  # sqlglot's Spark parser sets these
    return _OPERATORS[operator](this=_operand(left), expression=_operand(right), **extra)


def not_like(left: Node, operator: str, right: Node) -> Node:
    """`left NOT operator right`, for LIKE and ILIKE."""
    return _OPERATORS[operator](this=wrapped(left), expression=wrapped(right), negate=True)


def total(terms: Sequence[Node]) -> Node:
    """The sum of one or more terms."""
    result = terms[0]
    for term in terms[1:]:
        result = op(result, "+", term)
    return result


def negative(node: Operand) -> Node:
    """`- node`."""
    return exp.Paren(this=exp.Neg(this=_operand(node)))


def complement(node: Node) -> Node:
    """`~ node`."""
    return exp.BitwiseNot(this=wrapped(node))


def and_(*conditions: Node) -> Node:
    """All of one or more conditions."""
    return _connected(exp.And, conditions)


def or_(*conditions: Node) -> Node:
    """Any of one or more conditions."""
    return _connected(exp.Or, conditions)


def _connected(kind: type[exp.Connector], conditions: Sequence[Node]) -> Node:
    result = conditions[0]
    for condition in conditions[1:]:
        left = result if result is not conditions[0] else wrapped(result)
        result = kind(this=left, expression=wrapped(condition))
    return result


def not_(condition: Node) -> Node:
    """`NOT condition`."""
    return exp.Not(this=wrapped(condition))


def is_(node: Node, value: Node) -> Node:
    """`node IS value`, for NULL, TRUE or FALSE."""
    return exp.Is(this=wrapped(node), expression=value)


def is_null(node: Node) -> Node:
    """`node IS NULL`."""
    return is_(node, NULL)


def is_not_null(node: Node) -> Node:
    """`node IS NOT NULL`."""
    return exp.Not(this=is_null(node))


def in_(node: Node, values: Iterable[Operand]) -> Node:
    """`node IN (value, ...)`."""
    return exp.In(this=wrapped(node), expressions=[_node(v) for v in values])


def in_query(node: Node, query: exp.Query) -> Node:
    """`node IN (query)`."""
    return exp.In(this=wrapped(node), query=exp.Subquery(this=query))


def exists(query: exp.Query) -> exp.Exists:
    """`EXISTS (query)`."""
    return exp.Exists(this=query)


def when(condition: Node, then: Operand, otherwise: Operand | None = None) -> exp.Case:
    """`CASE WHEN condition THEN then [ELSE otherwise] END`."""
    return cases((condition, then), otherwise=otherwise)


def cases(*branches: tuple[Operand, Operand], of: Node | None = None, otherwise: Operand | None = None) -> exp.Case:
    """`CASE [of] WHEN ... THEN ... [ELSE otherwise] END`."""
    ifs = [exp.If(this=_node(condition), true=_node(then)) for condition, then in branches]
    return exp.Case(this=of, ifs=ifs, default=_node(otherwise) if otherwise is not None else None)


def at_least(node: Node, bound: int) -> Node:
    """The value, or the bound if the value is below it; NULL for NULL, where GREATEST would return the bound."""
    value = whole_number(node)
    if value is not None and value >= 0:
        return number(max(value, bound))
    return when(op(node, "<", bound), bound, node)


def at_most(node: Node, bound: Operand) -> Node:
    """The value, or the bound if the value is above it; NULL for NULL, where LEAST would return the bound."""
    return when(op(node, ">", bound), bound, node)


def _node(operand: Operand) -> Node:
    return number(operand) if isinstance(operand, int) else operand


def _operand(operand: Operand) -> Node:
    return wrapped(_node(operand))
