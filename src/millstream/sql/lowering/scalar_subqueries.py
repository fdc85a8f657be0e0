"""Subqueries that are values: scalar subqueries, and EXISTS and IN where they are only part of a condition.

Each is taken out of its expression, which keeps a placeholder, and later joined to the rows the expression is computed
for. A scalar subquery returns one row for each combination of its correlation keys, or fails as SQL requires. EXISTS
is true if such a combination exists. IN and NOT IN as values are never NULL in Spark, unlike in SQL: IN is false where
nothing is equal; NOT IN is true only if no value is equal and neither a value nor the operand is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.ops import Aggregate, Column, Item, OuterJoin, Project, Relation
from millstream.ops.expressions import (
    ONE,
    ZERO,
    all_of,
    any_of,
    cases,
    cast,
    coalesce,
    col,
    compare,
    is_not_null,
    is_null,
    keep,
    substitute,
    when,
    wrapped,
)
from millstream.sql.lowering.conditions import inner_join, with_inner_negations
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries
from millstream.sql.lowering.correlated import lower_subquery, require_comparable, without_select_list
from millstream.sql.lowering.refused_clauses import refuse_in_expression
from millstream.sql.lowering.scope import Scope
from millstream.sql.refusals.unsupported import invalid, unsupported

TOO_MANY = "a scalar subquery gives more than one row"
# expressions that are NULL if one of their operands is
_STRICT = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Paren, exp.Cast)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)

Found = dict[str, exp.Expr]
"""The values of subqueries, by the name of their placeholders."""


def placeholders_in(expressions: Iterable[exp.Expr]) -> dict[str, exp.Placeholder]:
    """The placeholders in some expressions, by name; one of IN has the operands below it."""
    return {p.name: p for e in expressions for p in e.find_all(exp.Placeholder)}


def fill(expression: exp.Expr, found: Mapping[str, exp.Expr]) -> exp.Expr:
    """The expression with the values of subqueries in place of their placeholders."""

    def replace(node: exp.Expr) -> exp.Expr:
        return wrapped(found[node.name].copy()) if isinstance(node, exp.Placeholder) and node.name in found else node

    return expression.transform(replace)


@dataclass
class ScalarSubqueries:
    """The subqueries in one SELECT's expressions that are values."""

    lowering: LowersQueries
    ctes: Ctes
    pending: dict[str, exp.Expr] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""
        return self.lowering.context

    def taken_out(self, expression: exp.Expr) -> exp.Expr:
        """The expression with placeholders for its subqueries; equal subqueries get the same one."""
        if (parameter := expression.find(exp.Placeholder, exp.Parameter)) is not None:
            raise unsupported("a parameter", parameter, self.context.sql, "write the value")

        def replace(node: exp.Expr) -> exp.Expr:
            if not _is_value(node):
                return node
            name = next((name for name, known in self.pending.items() if known == node), None)
            if name is None:
                name = f"subquery_{len(self.pending) + 1}"
                self.pending[name] = node
            return exp.Placeholder(this=name, expressions=[o.copy() for o in _operands(node)])

        return with_inner_negations(expression).transform(replace)

    def attached(
        self, relation: Relation, scope: Scope, expressions: Sequence[exp.Expr], conditions: Sequence[exp.Expr] = ()
    ) -> tuple[Relation, Found]:
        """The rows, joined with the values that the expressions need.

        Args:
            conditions: the caller keeps only rows for which all of these are true.
        """
        found: Found = {}
        for name, placeholder in placeholders_in(expressions).items():
            one = _Attaching(self, relation, scope, self.pending[name], placeholder.expressions)
            is_needed = any(_is_false_without(c, name) for c in conditions)
            relation, found[name] = one.value(is_needed=is_needed)
        return relation, found


@dataclass(frozen=True)
class _Attaching:
    """Joins one subquery to the rows."""

    scalars: ScalarSubqueries
    relation: Relation
    scope: Scope
    node: exp.Expr
    operands: Sequence[exp.Expr]

    @property
    def context(self) -> Context:
        return self.scalars.context

    def value(self, *, is_needed: bool) -> tuple[Relation, exp.Expr]:
        """The joined rows, and the value over their columns.

        Args:
            is_needed: rows for which the value is NULL will be dropped.
        """
        match self.node:
            case exp.Exists():
                return self._exists()
            case exp.In():
                return self._in(self.node, is_negated=False)
            case exp.Not():
                return self._in(self.node.this.unnest(), is_negated=True)
        return self._scalar(is_needed)

    def _lowered(self, query: exp.Expr, *, takes_empty: bool = True) -> Lowered:
        lowering, ctes = self.scalars.lowering, self.scalars.ctes
        return lower_subquery(
            lowering, ctes, query, self.scope, self.relation, needs_keys=True, takes_empty=takes_empty
        )

    # Scalar subqueries

    def _scalar(self, is_needed: bool) -> tuple[Relation, exp.Expr]:
        found = self._lowered(self.node)
        if len(found.names) != 1:
            message = f"a scalar subquery gives one column, not {len(found.names)}"
            raise invalid(message, self.node, self.context.sql)
        right: Relation = found.relation
        value: exp.Expr = col(found.outputs[0].name)
        if not found.is_single:
            right, value = self._guarded(found)
        if not found.conditions and _has_one_row(right):
            return inner_join(self.relation, right, []), value
        nothing = found.empty[0] if found.empty else None
        if is_needed and (nothing is None or _is_null(nothing)):
            return inner_join(self.relation, right, list(found.conditions)), value
        return self._padded(right, found.conditions, value, nothing)

    def _guarded(self, found: Lowered) -> tuple[Relation, exp.Expr]:
        """One row for each combination of keys, with the value; more than one value is an error if a row needs it."""
        fresh = self.context.namer.fresh
        output = found.outputs[0]
        value, rows = Column(fresh(output.name), output.type), Column(fresh("rows"), "bigint")
        calls = (Item(exp.Min(this=col(output.name)), value), Item(exp.Count(this=exp.Star()), rows))
        grouped = Aggregate(found.relation, keep(found.keys), calls)
        fails = exp.Anonymous(this="raise_error", expressions=[exp.Literal.string(TOO_MANY)])
        return grouped, when(compare(exp.GT, col(rows.name), ONE), cast(fails, output.type), col(value.name))

    def _padded(
        self, right: Relation, conditions: Sequence[exp.Expr], value: exp.Expr, otherwise: exp.Expr | None
    ) -> tuple[Relation, exp.Expr]:
        """The value if there is one, else NULL or the aggregates over no rows."""
        if otherwise is None or _is_null(otherwise):
            return OuterJoin("left", self.relation, right, all_of(conditions)), value
        right, marker = self._marked(right)
        joined = OuterJoin("left", self.relation, right, all_of(conditions))
        return joined, cases((is_not_null(marker), value), otherwise=otherwise)

    def _marked(self, right: Relation) -> tuple[Relation, exp.Expr]:
        """The relation with a column that is NULL in rows that an outer join adds."""
        marker = Column(self.context.namer.fresh("found"), "boolean")
        return Project(right, (*keep(right.columns), Item(exp.true(), marker))), col(marker.name)

    # EXISTS and IN

    def _exists(self) -> tuple[Relation, exp.Expr]:
        found = self._lowered(without_select_list(self.node.this))
        if found.empty is not None or (found.is_single and not found.conditions and _has_one_row(found.relation)):
            return self.relation, exp.true()
        if not found.conditions:
            counted, rows = self._counted(found, None)
            return inner_join(self.relation, counted, []), compare(exp.GT, rows[0], ZERO)
        right, marker = self._marked(Aggregate(found.relation, keep(found.keys), ()))
        return OuterJoin("left", self.relation, right, all_of(found.conditions)), is_not_null(marker)

    def _in(self, node: exp.Expr, *, is_negated: bool) -> tuple[Relation, exp.Expr]:
        found, bound = self._lowered(node.args["query"], takes_empty=False), self.operands
        for operand in bound:
            refuse_in_expression(operand, self.context)
        require_comparable(self.context, self.relation, bound, found, node)
        if len(bound) > 1 and is_negated:
            hint = "make it a separate condition, or write NOT EXISTS"
            raise unsupported("NOT IN of several columns inside an expression", node, self.context.sql, hint)
        columns = tuple(dict.fromkeys((*found.outputs, *found.keys)))
        distinct, marker = self._marked(Aggregate(found.relation, keep(columns), ()))
        equal = [compare(exp.EQ, x, col(c.name)) for x, c in zip(bound, found.outputs, strict=True)]
        joined = OuterJoin("left", self.relation, distinct, all_of([*found.conditions, *equal]))
        if not is_negated:
            return joined, is_not_null(marker)
        return self._not_in(joined, found, bound[0], is_not_null(marker))

    def _not_in(
        self, joined: Relation, found: Lowered, operand: exp.Expr, is_equal: exp.Expr
    ) -> tuple[Relation, exp.Expr]:
        """No value is equal, and neither a value nor the operand is NULL, unless there are no values at all."""
        # the same subquery under new names, because it is joined in addition to the one that was searched
        renamed = _renamed(found, self.context)
        counted, (rows, present) = self._counted(renamed, col(renamed.outputs[0].name))
        if renamed.conditions:
            joined = OuterJoin("left", joined, counted, all_of(renamed.conditions))
        else:
            joined = inner_join(joined, counted, [])
        is_empty = compare(exp.EQ, coalesce(rows, ZERO), ZERO)
        has_null = any_of([is_null(operand), compare(exp.LT, present, rows)])
        branches = ((is_empty, exp.true()), (is_equal, exp.false()), (has_null, exp.false()))
        return joined, cases(*branches, otherwise=exp.true())

    def _counted(self, found: Lowered, value: exp.Expr | None) -> tuple[Relation, tuple[exp.Expr, exp.Expr]]:
        """For each combination of keys, the number of rows and of those with a value."""
        fresh = self.context.namer.fresh
        rows, present = Column(fresh("rows"), "bigint"), Column(fresh("present"), "bigint")
        counts = (
            Item(exp.Count(this=exp.Star()), rows),
            *((Item(exp.Count(this=value), present),) if value is not None else ()),
        )
        return Aggregate(found.relation, keep(found.keys), counts), (col(rows.name), col(present.name))


def _renamed(found: Lowered, context: Context) -> Lowered:
    columns = {c.name: Column(context.namer.fresh(c.name), c.type) for c in found.relation.schema}
    items = tuple(Item(col(name), column) for name, column in columns.items())
    mapping: dict[str, exp.Expr] = {name: col(column.name) for name, column in columns.items()}
    conditions = tuple(substitute(c, mapping) for c in found.conditions)
    return Lowered(Project(found.relation, items), found.names, conditions=conditions)


def _has_one_row(relation: Relation) -> bool:
    """Whether it is an aggregation of all rows, which has one row even over no rows."""
    while isinstance(relation, Project):
        relation = relation.input
    return isinstance(relation, Aggregate) and not relation.keys


def _is_null(expression: exp.Expr) -> bool:
    return isinstance(expression, exp.Cast) and isinstance(expression.this, exp.Null)


def _is_value(node: exp.Expr) -> bool:
    if isinstance(node, exp.Exists):
        return isinstance(node.this, exp.Query)
    if isinstance(node, exp.In):
        return isinstance(node.args.get("query"), exp.Query)
    if isinstance(node, exp.Not) and isinstance(node.this.unnest(), exp.In):
        return _is_value(node.this.unnest())
    return isinstance(node, exp.Subquery | exp.Query)


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """The operands on the left of IN."""
    node = node.this.unnest() if isinstance(node, exp.Not) else node
    if not isinstance(node, exp.In):
        return []
    left = node.this.unnest()
    return left.expressions if isinstance(left, exp.Tuple) else [left]


def _path_to(condition: exp.Expr, name: str) -> Iterator[list[exp.Expr]]:
    """For each occurrence of a placeholder, the nodes above it, from the top."""
    for found in condition.find_all(exp.Placeholder):
        if found.name == name:
            path: list[exp.Expr] = []
            node: exp.Expr | None = found
            while node is not None and node is not condition:
                node = node.parent
                if node is not None:
                    path.insert(0, node)
            yield path


def _is_false_without(condition: exp.Expr, name: str) -> bool:
    """Whether a condition is not true where the value is NULL."""
    top = condition.unnest()
    if not isinstance(top, (*_COMPARISONS, exp.Between)):
        return False
    return any(all(isinstance(n, _STRICT) for n in path[1:]) for path in _path_to(top, name))
