"""EXISTS, IN and their negations among the conditions of a WHERE, to semi joins and anti joins.

A subquery may refer to the query around it in its own WHERE; such conditions become those of the join. `x NOT IN (...)`
has SQL's meaning of NULL: a NULL among the subquery's values leaves no row, a NULL on the left only one if there are no
values at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import AntiJoin, Filter, InnerJoin, Relation, SemiJoin, UnionAll
from millstream.ops.expressions import all_of, coalesce, col, compare, is_null, not_
from millstream.ops.relations import referenced
from millstream.sql.clauses import refuse_aggregates, refuse_in_expression, refuse_query_clauses
from millstream.sql.conditions import conjuncts, filtered
from millstream.sql.context import Context, Ctes, LowersQueries
from millstream.sql.from_clause import FromClause
from millstream.sql.scope import Scope
from millstream.sql.typing import decimal_parts, typed
from millstream.sql.unsupported import invalid, unsupported

_NUMBERS = {"tinyint", "smallint", "int", "bigint"}
_NOT_PLAIN = ("with_", "group", "having", "distinct")


@dataclass(frozen=True)
class Membership:
    """`[NOT] EXISTS (query)`, or `operands [NOT] IN (query)`."""

    query: exp.Query
    operands: tuple[exp.Expr, ...]
    is_negated: bool


@dataclass(frozen=True)
class _Inner:
    """A subquery: its rows, its output columns, and the conditions that refer to the query around it."""

    relation: Relation
    outputs: tuple[exp.Expr, ...]
    correlated: tuple[exp.Expr, ...]


def membership_of(condition: exp.Expr) -> Membership | None:
    """The membership a condition asks for, if that is all it does."""
    node, is_negated = condition.unnest(), False
    while isinstance(node, exp.Not):
        node, is_negated = node.this.unnest(), not is_negated
    if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query):
        return Membership(node.this, (), is_negated)
    if isinstance(node, exp.In) and isinstance(node.args.get("query"), exp.Query):
        left = node.this.unnest()
        operands = left.expressions if isinstance(left, exp.Tuple) else [left]
        return Membership(node.args["query"], tuple(operands), is_negated)
    return None


@dataclass(frozen=True)
class Subqueries:
    """Applies the conditions of one WHERE; `scope` is that of the query it belongs to."""

    lowering: LowersQueries
    ctes: Ctes
    scope: Scope

    @property
    def context(self) -> Context:
        """What is known of the text."""
        return self.lowering.context

    def where(self, relation: Relation, conditions: Sequence[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """The rows that satisfy the conditions, but for those that refer to an outer query: these are returned."""
        columns = {c.name for c in relation.columns}
        here: list[exp.Expr] = []
        outside: list[exp.Expr] = []
        tests: list[Membership] = []
        for condition in conditions:
            if (test := membership_of(condition)) is not None:
                tests.append(test)
                continue
            refuse_in_expression(condition, self.context)
            refuse_aggregates(condition, "WHERE", self.context)
            for bound in conjuncts(self.scope.bind(condition)):
                (here if referenced(bound) <= columns else outside).append(bound)
        relation = filtered(relation, here)
        for test in tests:
            relation = self._tested(relation, test)
        return relation, outside

    def _tested(self, relation: Relation, test: Membership) -> Relation:
        inner = self._inner(test)
        operands = [self._operand(relation, o) for o in test.operands]
        if len(operands) != len(inner.outputs):
            raise invalid(
                f"IN compares {len(operands)} with {len(inner.outputs)} columns", test.query, self.context.sql
            )
        known = {c.name for c in (*relation.columns, *inner.relation.columns)}
        for condition in inner.correlated:
            if not referenced(condition) <= known:
                raise unsupported("a subquery that refers past the query around it", test.query, self.context.sql)
        self._require_equal_types(relation, operands, inner, test)
        equal = [compare(exp.EQ, x.copy(), y.copy()) for x, y in zip(operands, inner.outputs, strict=True)]
        if not test.is_negated:
            return _joined(relation, inner, equal, SemiJoin)
        if len(equal) == 1:
            return _not_in(relation, inner, operands[0], inner.outputs[0])
        return _joined(relation, inner, [coalesce(all_of(equal), exp.true())] if equal else [], AntiJoin)

    def _operand(self, relation: Relation, operand: exp.Expr) -> exp.Expr:
        refuse_in_expression(operand, self.context)
        bound = self.scope.bind(operand)
        if not referenced(bound) <= {c.name for c in relation.columns}:
            raise unsupported("a subquery that refers past the query around it", operand, self.context.sql)
        return bound

    def _inner(self, test: Membership) -> _Inner:
        query = test.query.unnest()
        if not _is_plain(query, needs_columns=bool(test.operands)):
            lowered = self.lowering.query(query, self.ctes)
            columns = tuple(col(c.name) for c in lowered.relation.schema)
            return _Inner(lowered.relation, columns if test.operands else (), ())
        refuse_query_clauses(query, self.context)
        inner = Subqueries(self.lowering, self.ctes, Scope(self.context.sql, outer=self.scope))
        relation = FromClause(self.lowering, self.ctes, inner.scope).relation(
            query.args["from_"].this, query.args.get("joins") or ()
        )
        where = query.args.get("where")
        relation, correlated = inner.where(relation, conjuncts(where.this) if where else [])
        outputs = tuple(inner._operand(relation, e.unalias()) for e in query.expressions) if test.operands else ()
        return _Inner(relation, outputs, tuple(correlated))

    def _require_equal_types(
        self, relation: Relation, operands: Sequence[exp.Expr], inner: _Inner, test: Membership
    ) -> None:
        """IN and `=` bring different types together by different rules."""
        left = typed(self.context.analyzer, relation, operands)
        right = typed(self.context.analyzer, inner.relation, inner.outputs)
        for x, y in zip(left, right, strict=True):
            if x.type != y.type and not (_is_exact_number(x.type) and _is_exact_number(y.type)):
                hint = f"cast one side: they are {x.type} and {y.type}"
                raise unsupported("IN with values of another type", test.query, self.context.sql, hint)


def _not_in(relation: Relation, inner: _Inner, operand: exp.Expr, output: exp.Expr) -> Relation:
    """Rows with a value: it is not among the others, and these have no NULL. Rows without: there are no others."""
    present = Filter(relation, not_(is_null(operand.copy())))
    unequal = _joined(present, inner, [compare(exp.EQ, operand.copy(), output.copy())], AntiJoin)
    nulls = _Inner(Filter(inner.relation, is_null(output.copy())), (), inner.correlated)
    absent = Filter(relation, is_null(operand.copy()))
    return UnionAll((_joined(unequal, nulls, [], AntiJoin), _joined(absent, inner, [], AntiJoin)))


def _joined(
    relation: Relation,
    inner: _Inner,
    conditions: Sequence[exp.Expr],
    join: Callable[[Relation, Relation, exp.Expr], Relation],
) -> Relation:
    """Join with the subquery; of an inner join only the input that the conditions refer to, if it is one."""
    condition = all_of([*(c.copy() for c in inner.correlated), *conditions])
    if isinstance(relation, InnerJoin):
        names = referenced(condition) - {c.name for c in inner.relation.columns}
        homes = [i for i, r in enumerate(relation.inputs) if names & {c.name for c in r.columns}]
        if len(homes) == 1:
            inputs = list(relation.inputs)
            inputs[homes[0]] = join(inputs[homes[0]], inner.relation, condition)
            return InnerJoin(tuple(inputs), relation.conditions)
    return join(relation, inner.relation, condition)


def _is_plain(query: exp.Expr, *, needs_columns: bool) -> bool:
    """Whether the rows of a query are those of its FROM that satisfy its WHERE."""
    if not isinstance(query, exp.Select) or not query.args.get("from_"):
        return False
    if needs_columns and any(e.is_star for e in query.expressions):
        return False
    calls = any(e.find(exp.AggFunc) for e in query.expressions)
    return not calls and not any(query.args.get(name) for name in _NOT_PLAIN)


def _is_exact_number(type_: str) -> bool:
    return type_ in _NUMBERS or decimal_parts(type_) is not None
