"""`x IN (SELECT ...)` and `x op ANY | ALL (SELECT ...)`: as conditions of a filter, and as values.

In a filter, NULL counts as false, so Spark's IN and EXISTS are enough. As a value, a test may be NULL: it is computed
from the least and the greatest value of the subquery, and from the number of its values that are NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.parse import bare_query
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import compared
from millstream.sql.postgres.operands import OPERATORS, compare, quantifier
from millstream.sql.postgres.refusals import RefusalError, refuse_comparison, refused, wrong
from millstream.sql.postgres.spark_builders import (
    FALSE,
    NULL,
    ONE,
    TRUE,
    Node,
    and_,
    cases,
    exists,
    fn,
    in_query,
    is_,
    is_null,
    not_,
    op,
    or_,
    own_column,
    own_name,
)
from millstream.sql.postgres.spark_queries import aliased, select, source
from millstream.sql.postgres.typed_expressions import Value

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions

_SUB, _COLUMN = "__ms_q", "__ms_v"
"""The names of a subquery inside another one, and of its column: no table or column of the user has them."""
_VALUE = own_column(_COLUMN)
_STAR = exp.Star()


def _asked(what: Node, query: exp.Query) -> exp.Select:
    """A query for one expression over a subquery of one column."""
    return select([what], source(query, own_name(_SUB), [own_name(_COLUMN)]))


# As values


def in_value(self: Expressions, left: Value, query: exp.Expr) -> Node:
    """IN as a value: Spark's IN is never NULL there."""
    if left.items:
        raise RefusalError("(a, b) IN (SELECT ...) as a value", "use EXISTS, or put it into WHERE")
    found = _in_query(self, left, query)
    asked, _ = self.queries.subquery(query, self.scope)
    count, nulls = _count_and_nulls(asked)
    unknown = and_(op(count, ">", 0), or_(is_null(left.tree), op(nulls, ">", 0)))
    return cases((found, TRUE), (unknown, NULL), otherwise=FALSE)


def _count_and_nulls(query: exp.Query) -> tuple[Node, Node]:
    """How many rows a subquery has, and how many of its values are NULL."""
    count = fn("COUNT", _STAR)
    nulls = op(count, "-", fn("COUNT", _VALUE))
    return exp.Subquery(this=_asked(count, query)), exp.Subquery(this=_asked(nulls, query))


_EXTREMES = {
    ("<", False): ("MAX",),
    ("<=", False): ("MAX",),
    (">", False): ("MIN",),
    (">=", False): ("MIN",),
    ("<>", False): ("MIN", "MAX"),
    ("<", True): ("MIN",),
    ("<=", True): ("MIN",),
    (">", True): ("MAX",),
    (">=", True): ("MAX",),
    ("=", True): ("MIN", "MAX"),
}


def quantified_value(self: Expressions, operator: str, left: Value, query: exp.Expr, every: bool) -> Value:
    """`x op ANY | ALL (SELECT ...)` as a value."""
    if (operator, every) in {("=", False), ("<>", True)}:
        test = in_value(self, left, query)
        return Value(not_(test) if every else test, t.BOOLEAN)
    asked, columns = self.queries.subquery(query, self.scope)
    if len(columns) != 1:
        raise wrong("ANY and ALL take a subquery of one column", query, self.queries.sql)
    extremes = [exp.Subquery(this=_asked(fn(name, _VALUE), asked)) for name in _EXTREMES[operator, every]]
    tests = [compare(operator, left, Value(extreme, columns[0].type)).tree for extreme in extremes]
    count, nulls = _count_and_nulls(asked)
    test = and_(*tests) if every else or_(*tests)
    decided = (not_(test), FALSE) if every else (test, TRUE)
    unknown = or_(is_null(left.tree), op(nulls, ">", 0))
    default = TRUE if every else FALSE
    return Value(cases((op(count, "=", 0), default), decided, (unknown, NULL), otherwise=default), t.BOOLEAN)


# In a filter


def filtering_subquery(self: Expressions, node: exp.Expr, *, is_conjunct: bool) -> Node | None:
    """A test where NULL counts as false: IN, EXISTS and their negations. None for everything else."""
    try:
        found = _filtering_in(self, node, is_conjunct)
        return found if found is not None else _filtering_quantifier(self, node, is_conjunct)
    except RefusalError as e:
        raise refused(e.what, node, self.queries.sql, e.hint) from e


def _filtering_in(self: Expressions, node: exp.Expr, is_conjunct: bool) -> Node | None:
    """IN, and NOT IN outside of OR: there, Spark would take NOT IN as the negation of a test that is never NULL."""
    negated = isinstance(node, exp.Not)
    inner = node.this.unnest() if negated else node
    if not isinstance(inner, exp.In) or inner.args.get("query") is None or (negated and not is_conjunct):
        return None
    if inner.args.get("negate"):
        return None
    query = inner.args["query"]
    left = self.translate(inner.this)
    return _in_query(self, left, bare_query(query), negated=negated)


def _in_query(self: Expressions, left: Value, query: exp.Expr, negated: bool = False) -> Node:
    asked, columns = self.queries.subquery(query, self.scope)
    operands = left.items or (left,)
    if len(columns) != len(operands):
        raise wrong(f"IN compares {len(operands)} with {len(columns)} columns", query, self.queries.sql)
    lefts, casts = [], []
    names = [f"__ms_c{i}" for i in range(len(columns))]
    plain = [own_column(name) for name in names]
    for operand, column, reference in zip(operands, columns, plain, strict=True):
        (a, b), type_ = compared(operand, Value(reference, column.type))
        refuse_comparison(type_)
        lefts.append(a.tree)
        casts.append(b.tree)
    if casts != plain:
        items = [aliased(c, own_name(n)) for c, n in zip(casts, names, strict=True)]
        asked = select(items, source(asked, own_name(_SUB), [own_name(n) for n in names]))
    test = in_query(lefts[0] if len(lefts) == 1 else exp.Tuple(expressions=lefts), asked)
    return not_(test) if negated else test


def _filtering_quantifier(self: Expressions, node: exp.Expr, is_conjunct: bool) -> Node | None:
    found = quantifier(node) if type(node) in OPERATORS else None
    if found is None or not isinstance(found[0], exp.Query):
        return None
    left, operator, (query, every) = self.translate(node.this), OPERATORS[type(node)], found
    if (operator, every) == ("<>", True) and not is_conjunct:
        return None
    if (operator, every) in {("=", False), ("<>", True)}:
        return _in_query(self, left, query, negated=every)
    asked, columns = self.queries.subquery(query, self.scope)
    test = compare(operator, left, Value(own_column(_COLUMN, _SUB), columns[0].type)).tree
    rows = _asked(ONE, asked)
    rows.set("where", exp.Where(this=not_(is_(test, TRUE)) if every else test))
    return not_(exists(rows)) if every else exists(rows)
