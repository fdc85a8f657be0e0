"""Correlated subqueries: those that refer to columns of the outer query."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.ops import Relation
from millstream.ops.expressions import col
from millstream.ops.relations import referenced
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries, Outer, UncarriedError
from millstream.sql.lowering.lateral import generator_of
from millstream.sql.lowering.scope import Scope
from millstream.sql.parse import bare_query
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import decimal_parts, typed

_NUMBERS = {"tinyint", "smallint", "int", "bigint"}
_COMBINES_ROWS = ("with_", "group", "having", "distinct", "limit", "offset", "qualify")


def lower_subquery(
    lowering: LowersQueries,
    ctes: Ctes,
    query: exp.Expr,
    scope: Scope,
    relation: Relation,
    *,
    needs_keys: bool,
    takes_empty: bool = True,
) -> Lowered:
    """Lower a subquery of a query with the given rows; see `Outer` for `needs_keys` and `takes_empty`.

    The first attempt carries in no columns of the outer query, which is cheaper; the next ones carry in those that
    turned out to be needed.
    """
    outer = Outer(scope, relation, needs_keys, takes_empty)
    while True:
        try:
            found = lowering.query(query, ctes, outer)
            _require_known(found, relation)
        except UncarriedError as error:
            own = error.names & {c.name for c in relation.columns}
            if not own - outer.carried.keys():
                raise  # a column of a query further out, which has to be carried into this one first
            outer = outer.carrying(own | outer.carried.keys(), lowering.context.namer)
        else:
            return found


def _require_known(found: Lowered, relation: Relation) -> None:
    """A condition on a query further out cannot be a condition of the join with this query."""
    known = {c.name for r in (found.relation, relation) for c in r.columns}
    if missing := {name for c in found.conditions for name in referenced(c)} - known:
        raise UncarriedError(missing)


def without_select_list(query: exp.Expr) -> exp.Expr:
    """The query of an EXISTS without its SELECT list: only whether there are rows matters."""
    query = bare_query(query)
    if not isinstance(query, exp.Select) or any(query.args.get(name) for name in _COMBINES_ROWS):
        return query
    if any(e.find(exp.AggFunc) or generator_of(_unnamed(e)) for e in query.expressions):
        return query
    return query.copy().select(exp.Literal.number(1), append=False, copy=False)


def _unnamed(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Aliases) else item.unalias()


def is_exact_number(type_: str) -> bool:
    """Whether equal values of this type, and of other such types, are the same value."""
    return type_ in _NUMBERS or decimal_parts(type_) is not None


def require_comparable(
    context: Context, relation: Relation, operands: Sequence[exp.Expr], found: Lowered, node: exp.Expr
) -> None:
    """Refuse an IN of different types: IN and `=` convert them by different rules."""
    if len(operands) != len(found.names):
        raise invalid(f"IN compares {len(operands)} with {len(found.names)} columns", node, context.sql)
    outputs = [col(c.name) for c in found.outputs]
    left, right = typed(context.analyzer, relation, operands), typed(context.analyzer, found.relation, outputs)
    for x, y in zip(left, right, strict=True):
        if x.type != y.type and not (is_exact_number(x.type) and is_exact_number(y.type)):
            hint = f"cast one side: they are {x.type} and {y.type}"
            raise unsupported("IN with values of another type", node, context.sql, hint)
