"""EXISTS, IN and their negations among the conditions of a WHERE, to semi joins and anti joins.

A subquery may refer to the outer query; such conditions become those of the join. `x NOT IN (...)` treats NULL as SQL
does: with a NULL among the subquery's values no row remains, and a row whose `x` is NULL remains only if there are no
values at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import AntiJoin, Filter, InnerJoin, Relation, SemiJoin, UnionAll
from millstream.ops.expressions import all_of, coalesce, col, compare, conjuncts, is_null, not_
from millstream.ops.relations import referenced
from millstream.sql.lowering.conditions import filtered
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries, UncarriedError
from millstream.sql.lowering.correlated import lower_subquery, require_comparable, without_select_list
from millstream.sql.lowering.refused_clauses import refuse_aggregates, refuse_in_expression
from millstream.sql.lowering.scalar_subqueries import ScalarSubqueries, fill, placeholders_in
from millstream.sql.lowering.scope import Scope
from millstream.sql.parse import bare_query


@dataclass(frozen=True)
class Membership:
    """`[NOT] EXISTS (query)`, or `operands [NOT] IN (query)`."""

    query: exp.Query
    operands: tuple[exp.Expr, ...]
    is_negated: bool


def membership_of(condition: exp.Expr) -> Membership | None:
    """The membership test that a condition consists of; None if it is anything else."""
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
        """The text, and what is known about it."""
        return self.lowering.context

    def where(self, relation: Relation, conditions: Sequence[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """The rows that satisfy the conditions, and the remaining conditions, which refer to an outer query."""
        columns = {c.name for c in relation.columns}
        scalars = ScalarSubqueries(self.lowering, self.ctes)
        here: list[exp.Expr] = []
        outside: list[exp.Expr] = []
        compared: list[exp.Expr] = []
        tests: list[Membership] = []
        for condition in conditions:
            if (test := membership_of(condition)) is not None:
                tests.append(test)
                continue
            condition = scalars.taken_out(condition)
            refuse_in_expression(condition, self.context)
            refuse_aggregates(condition, "WHERE", self.context)
            for bound in conjuncts(self.scope.bind(condition)):
                if placeholders_in([bound]):
                    self._require_own(bound, columns)
                    compared.append(bound)
                else:
                    (here if referenced(bound) <= columns else outside).append(bound)
        relation = filtered(relation, here)
        for test in tests:
            relation = self._tested(relation, test)
        if compared:
            relation, found = scalars.attached(relation, self.scope, compared, compared)
            relation = filtered(relation, [fill(c, found) for c in compared])
        return relation, outside

    def _tested(self, relation: Relation, test: Membership) -> Relation:
        query = test.query if test.operands else without_select_list(test.query)
        inner = lower_subquery(self.lowering, self.ctes, query, self.scope, relation, needs_keys=False)
        if inner.empty is not None:
            return self._tested_value(relation, test)
        operands = [self._operand(relation, o) for o in test.operands]
        if operands:
            require_comparable(self.context, relation, operands, inner, test.query)
        outputs = [col(c.name) for c in inner.outputs] if operands else []
        equal = [compare(exp.EQ, x, y) for x, y in zip(operands, outputs, strict=True)]
        if not test.is_negated:
            return _joined(relation, inner.relation, [*inner.conditions, *equal], SemiJoin)
        if len(equal) == 1:
            return _not_in(relation, inner, operands[0], outputs[0])
        unequal = [coalesce(all_of(equal), exp.true())] if equal else []
        return _joined(relation, inner.relation, [*inner.conditions, *unequal], AntiJoin)

    def _tested_value(self, relation: Relation, test: Membership) -> Relation:
        """Compare with a subquery of aggregates: it has one row for each row here, so there is nothing to search."""
        if not test.operands:
            return Filter(relation, exp.false()) if test.is_negated else relation
        scalars = ScalarSubqueries(self.lowering, self.ctes)
        kind = exp.NEQ if test.is_negated else exp.EQ
        compared = kind(this=test.operands[0].copy(), expression=exp.Subquery(this=bare_query(test.query).copy()))
        bound = self.scope.bind(scalars.taken_out(compared))
        relation, found = scalars.attached(relation, self.scope, [bound], [bound])
        return Filter(relation, fill(bound, found))

    def _operand(self, relation: Relation, operand: exp.Expr) -> exp.Expr:
        refuse_in_expression(operand, self.context)
        bound = self.scope.bind(operand)
        self._require_own(bound, {c.name for c in relation.columns})
        return bound

    def _require_own(self, bound: exp.Expr, columns: set[str]) -> None:
        if missing := referenced(bound) - columns:
            raise UncarriedError(missing)


def _not_in(relation: Relation, inner: Lowered, operand: exp.Expr, output: exp.Expr) -> Relation:
    """Rows with an operand if no inner value is equal or NULL; rows with a NULL operand if there are no inner rows."""
    present = Filter(relation, not_(is_null(operand)))
    equal = [*inner.conditions, compare(exp.EQ, operand, output)]
    unequal = _joined(present, inner.relation, equal, AntiJoin)
    nulls = Filter(inner.relation, is_null(output))
    absent = Filter(relation, is_null(operand))
    return UnionAll(
        (
            _joined(unequal, nulls, inner.conditions, AntiJoin),
            _joined(absent, inner.relation, inner.conditions, AntiJoin),
        )
    )


def _joined(
    relation: Relation,
    inner: Relation,
    conditions: Sequence[exp.Expr],
    join: Callable[[Relation, Relation, exp.Expr], Relation],
) -> Relation:
    """Join with the subquery; if the conditions refer to one input of an inner join, only that input is joined."""
    condition = all_of(conditions)
    if isinstance(relation, InnerJoin):
        names = referenced(condition) - {c.name for c in inner.columns}
        homes = [i for i, r in enumerate(relation.inputs) if names & {c.name for c in r.columns}]
        if len(homes) == 1:
            inputs = list(relation.inputs)
            inputs[homes[0]] = join(inputs[homes[0]], inner, condition)
            return InnerJoin(tuple(inputs), relation.conditions)
    return join(relation, inner, condition)
