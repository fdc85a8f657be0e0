"""FROM and its joins: tables, views, CTEs, subqueries and joins in parentheses, to scans and joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import AntiJoin, Column, Item, OuterJoin, Project, Relation, Scan, SemiJoin
from millstream.ops.expressions import add_columns, all_of, cases, coalesce, col, conjuncts, is_not_null, keep
from millstream.ops.relations import referenced
from millstream.sql.lowering.conditions import filtered, inner_join
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries, UncarriedError
from millstream.sql.lowering.correlated import lower_subquery
from millstream.sql.lowering.lateral import Generator, generated, generator_of
from millstream.sql.lowering.refused_clauses import refuse_aggregates, refuse_in_expression
from millstream.sql.lowering.scope import Scope, Visible
from millstream.sql.parse import position_of
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import typed
from millstream.sql.sources import Source, View

MAX_VIEW_DEPTH = 10


@dataclass(frozen=True)
class FromClause:
    """Lowers the items of one FROM clause, and adds their names to a scope."""

    lowering: LowersQueries
    ctes: Ctes
    scope: Scope

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""
        return self.lowering.context

    def relation(self, node: exp.Expr, joins: Sequence[exp.Join] = (), first: Relation | None = None) -> Relation:
        """A FROM item, joined with `first` before it and with the items after it."""
        relation = self._item(node)
        if first is not None:
            self._refuse_outer_joins((*(node.args.get("joins") or ()), *joins))
            relation = inner_join(first, relation, [])
        for join in (*(node.args.get("joins") or ()), *joins):
            relation = self._join(relation, join)
        return relation

    def _refuse_outer_joins(self, joins: Sequence[exp.Join]) -> None:
        """Every row of a subquery must have the carried columns, also rows that a join pads with NULLs."""
        for join in joins:
            if (join.side or "").upper() in {"RIGHT", "FULL"}:
                what = f"{join.side.upper()} JOIN in a subquery that refers to the outer query like this"
                raise unsupported(what, join, self.context.sql, "write it as a LEFT JOIN, or in a subquery of FROM")

    # Joins

    def _join(self, left: Relation, join: exp.Join) -> Relation:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        method = (join.args.get("method") or "").upper()
        if isinstance(join.this, exp.Lateral):
            return self._lateral(left, join, join.this)
        if "SEMI" in (side, kind) or "ANTI" in (side, kind):
            return self._filtering_join(left, join, SemiJoin if "SEMI" in (side, kind) else AntiJoin)
        if method not in {"", "NATURAL"}:
            raise unsupported(" ".join(w for w in (method, side, kind, "JOIN") if w), join, self.context.sql)
        before = list(self.scope.columns)
        right = self._nested(join.this) if join.this.args.get("joins") else self._item(join.this)
        behind = self.scope.columns[len(before) :]
        pairs = self._using(join, before, behind, is_natural=method == "NATURAL")
        conditions: list[exp.Expr] = [exp.EQ(this=col(x.column.name), expression=col(y.column.name)) for x, y in pairs]
        if (on := join.args.get("on")) is not None:
            refuse_in_expression(on, self.context)
            refuse_aggregates(on, "ON", self.context)
            conditions += conjuncts(self.scope.bind(on))
        _require_own(conditions, left, right)
        relation = _joined(side, left, right, conditions)
        return self._merged(side, relation, pairs, before, behind) if pairs else relation

    def _filtering_join(self, left: Relation, join: exp.Join, kind: type[SemiJoin | AntiJoin]) -> Relation:
        """LEFT SEMI and LEFT ANTI JOIN: only the condition sees the right side."""
        inner = FromClause(self.lowering, self.ctes, Scope(self.context.sql))
        right = inner._nested(join.this) if join.this.args.get("joins") else inner._item(join.this)
        is_natural = (join.args.get("method") or "").upper() == "NATURAL"
        pairs = self._using(join, self.scope.columns, inner.scope.columns, is_natural=is_natural)
        conditions: list[exp.Expr] = [exp.EQ(this=col(x.column.name), expression=col(y.column.name)) for x, y in pairs]
        if (on := join.args.get("on")) is not None:
            refuse_in_expression(on, self.context)
            refuse_aggregates(on, "ON", self.context)
            both = Scope(self.context.sql, dict(self.scope.tables), list(self.scope.columns))
            both.absorb(inner.scope, join)
            conditions += conjuncts(both.bind(on))
        return kind(left, right, all_of(conditions))

    # LATERAL

    def lateral_view(self, left: Relation, node: exp.Lateral) -> Relation:
        """LATERAL VIEW [OUTER]: a generator over the rows so far."""
        call = generator_of(node.this)
        if call is None:
            raise unsupported(f"LATERAL VIEW {node.this.sql(dialect='spark')}", node, self.context.sql)
        if node.args.get("outer"):
            call = replace(call, is_outer=True)
        return self._generated(left, call, node)

    def _lateral(self, left: Relation, join: exp.Join, node: exp.Lateral) -> Relation:
        """JOIN LATERAL: a generator, or a subquery that refers to the FROM items before it."""
        side, on = (join.side or "").upper(), join.args.get("on")
        if side not in {"", "LEFT"}:
            raise unsupported(f"{side} JOIN LATERAL", join, self.context.sql)
        if (call := generator_of(node.this)) is not None:
            if on is not None and not _is_true(on):
                raise unsupported("LATERAL with a condition", join, self.context.sql, "write it in WHERE")
            return self._generated(left, replace(call, is_outer=call.is_outer or side == "LEFT"), node)
        if not isinstance(node.this, exp.Subquery):
            raise unsupported(f"LATERAL {node.this.sql(dialect='spark')}", node, self.context.sql)
        return self._lateral_subquery(left, side, on, node)

    def _generated(self, left: Relation, call: Generator, node: exp.Lateral) -> Relation:
        relation, added = generated(left, call, lambda e: self._own(self.scope.bind(e), left), self.context, node)
        named = _named(added, node.alias_column_names, node, self.context)
        self.scope.add(node.alias or f"__lateral{len(self.scope.tables)}", named, node)
        return relation

    def _lateral_subquery(self, left: Relation, side: str, on: exp.Expr | None, node: exp.Lateral) -> Relation:
        found = lower_subquery(self.lowering, self.ctes, node.this, self.scope, left, needs_keys=False)
        found = renamed(found, node.alias_column_names, node, self.context)
        visible = list(found.visible)
        right, conditions = found.relation, list(found.conditions)
        if found.empty is not None:
            left, visible = self._with_values_of_no_rows(left, found)
        self.scope.add(node.alias or f"__lateral{len(self.scope.tables)}", visible, node)
        more = conjuncts(self.scope.bind(on)) if on is not None and not _is_true(on) else []
        if found.empty is not None:
            if more and side == "LEFT":
                raise unsupported("LEFT JOIN LATERAL of an aggregate with a condition", node, self.context.sql)
            return filtered(left, more)
        _require_own([*conditions, *more], left, right)
        if side == "LEFT":
            return OuterJoin("left", left, right, all_of([*conditions, *more]))
        return inner_join(left, right, [*conditions, *more])

    def _with_values_of_no_rows(self, left: Relation, found: Lowered) -> tuple[Relation, list[Visible]]:
        """Each row with the aggregates over the rows that match it, also where none do."""
        assert found.empty is not None
        fresh = self.context.namer.fresh
        marker = Column(fresh("found"), "boolean")
        marked = Project(found.relation, (*keep(found.relation.columns), Item(exp.true(), marker)))
        joined = OuterJoin("left", left, marked, all_of(found.conditions))
        items = [
            Item(cases((is_not_null(col(marker.name)), col(c.name)), otherwise=nothing), Column(fresh(c.name), c.type))
            for c, nothing in zip(found.outputs, found.empty, strict=True)
        ]
        result = Project(joined, (*keep(left.columns), *items))
        return result, [Visible(n, i.column) for n, i in zip(found.names, items, strict=True)]

    def _own(self, bound: exp.Expr, *relations: Relation) -> exp.Expr:
        _require_own([bound], *relations)
        return bound

    # Columns that both sides have

    def _using(
        self, join: exp.Join, left: Sequence[Visible], right: Sequence[Visible], *, is_natural: bool
    ) -> list[tuple[Visible, Visible]]:
        """The pairs of columns that USING or NATURAL makes equal."""
        names = [node.name for node in join.args.get("using") or ()]
        if is_natural:
            known = {v.name.lower() for v in right}
            names = [v.name for v in left if v.name.lower() in known]
        return [(self._only(name, left, join), self._only(name, right, join)) for name in names]

    def _only(self, name: str, columns: Sequence[Visible], join: exp.Join) -> Visible:
        found = [v for v in columns if v.name.lower() == name.lower()]
        if len(found) != 1:
            problem = "is ambiguous in" if found else "does not exist in"
            place = next((node for node in join.args.get("using") or () if node.name == name), join)
            raise invalid(f"the column {name} {problem} one side of the join", place, self.context.sql, "write ON")
        return found[0]

    def _merged(
        self,
        side: str,
        relation: Relation,
        pairs: Sequence[tuple[Visible, Visible]],
        left: Sequence[Visible],
        right: Sequence[Visible],
    ) -> Relation:
        """Merge each pair into one column: from the side that is always present, or the value that is not NULL."""
        merged = [y if side == "RIGHT" else x for x, y in pairs]
        if side == "FULL":
            either = [coalesce(col(x.column.name), col(y.column.name)) for x, y in pairs]
            types = typed(self.context.analyzer, relation, either)
            names = [self.context.namer.fresh(x.column.name) for x, _ in pairs]
            items = [Item(e, Column(n, t.type)) for e, n, t in zip(either, names, types, strict=True)]
            merged = [Visible(x.name, item.column) for (x, _), item in zip(pairs, items, strict=True)]
            relation = Project(relation, add_columns(relation, items))
        gone = {v for pair in pairs for v in pair}
        self.scope.columns[:] = [*merged, *(v for v in (*left, *right) if v not in gone)]
        return relation

    # Items

    def _item(self, node: exp.Expr) -> Relation:
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query) and not _is_grouped_join(node):
            lowered = renamed(self.lowering.query(node, self.ctes), node.alias_column_names, node, self.context)
            self.scope.add(node.alias or f"__subquery{len(self.scope.tables)}", lowered.visible, node)
            return lowered.relation
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return self._table(node)
        if isinstance(node, exp.Subquery):
            return self._nested(node.this, node)
        if isinstance(node, exp.Values):
            return self._values(node)
        raise unsupported(f"{node.sql(dialect='spark')} in FROM", node, self.context.sql)

    def _values(self, node: exp.Values) -> Relation:
        """VALUES: rows of constants, which never change."""
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
        if len({len(row) for row in rows}) != 1:
            raise invalid("the rows of VALUES differ in their number of columns", node, self.context.sql)
        for value in (v for row in rows for v in row):
            refuse_in_expression(value, self.context)
            if value.find(exp.Column):
                raise unsupported("VALUES with a column", node, self.context.sql, "write SELECT ... UNION ALL SELECT")
        table = exp.union(*(exp.select(*(v.copy() for v in row)) for row in rows), distinct=False) if rows[1:] else None
        lowered = self.lowering.query(table or exp.select(*(v.copy() for v in rows[0])), self.ctes)
        names = node.alias_column_names or [f"col{n}" for n in range(1, len(rows[0]) + 1)]
        lowered = renamed(lowered, names, node, self.context)
        self.scope.add(node.alias or f"__values{len(self.scope.tables)}", lowered.visible, node)
        return lowered.relation

    def _nested(self, node: exp.Expr, parentheses: exp.Subquery | None = None) -> Relation:
        """Joins in parentheses, made before their result is joined: their conditions see no names from outside."""
        inner = FromClause(self.lowering, self.ctes, Scope(self.context.sql))
        relation = inner.relation(node)
        if parentheses is not None and parentheses.alias:
            columns = _named(inner.scope.columns, parentheses.alias_column_names, parentheses, self.context)
            self.scope.add(parentheses.alias, columns, parentheses)
        else:
            self.scope.absorb(inner.scope, node)
        return relation

    def _table(self, node: exp.Table) -> Relation:
        parts = [part.name for part in node.parts]
        alias = node.alias or parts[-1]
        if len(parts) == 1 and parts[0].lower() in self.ctes:
            lowered = self._again(self.ctes[parts[0].lower()])
        else:
            lowered = self._source(node, parts, alias)
        lowered = renamed(lowered, node.alias_column_names, node, self.context)
        self.scope.add(alias, lowered.visible, node)
        return lowered.relation

    def _source(self, node: exp.Table, parts: Sequence[str], alias: str) -> Lowered:
        found = self.context.sources.find(parts)
        if isinstance(found, View):
            if self.context.depth == MAX_VIEW_DEPTH:
                raise unsupported(f"views nested more than {MAX_VIEW_DEPTH} deep", node, self.context.sql)
            if found.id not in self.context.views:
                self.context.views[found.id] = self.lowering.view(found.text)
            return self._again(self.context.views[found.id])
        if isinstance(found, Source):
            fresh = self.context.namer.fresh
            columns = tuple(Column(fresh(f"{alias}_{c.name}"), c.type) for c in found.columns)
            names = tuple(c.name for c in found.columns)
            return Lowered(Scan(found.id, names, columns), names)
        raise MillstreamError(
            Code.UNKNOWN_TABLE,
            f"there is no table {'.'.join(parts)}",
            position=position_of(node),
            sql=self.context.sql,
            hint="create it first, or check the spelling",
        )

    def _again(self, lowered: Lowered) -> Lowered:
        """A relation that may occur several times in the query, each time under new names.

        The relation below the renaming stays the same object, so that its delta is computed once.
        """
        fresh = self.context.namer.fresh
        items = tuple(Item(col(c.name), Column(fresh(c.name), c.type)) for c in lowered.relation.schema)
        return Lowered(Project(lowered.relation, items), lowered.names)


def renamed(lowered: Lowered, names: Sequence[str], node: exp.Expr, context: Context) -> Lowered:
    """The query under the column names of its alias, if it has any."""
    return replace(lowered, names=tuple(v.name for v in _named(lowered.visible, names, node, context)))


def _named(columns: Sequence[Visible], names: Sequence[str], node: exp.Expr, context: Context) -> Sequence[Visible]:
    if names and len(names) != len(columns):
        raise invalid(f"{len(columns)} columns are given {len(names)} names", node, context.sql)
    return [Visible(name, v.column) for name, v in zip(names, columns, strict=True)] if names else columns


def _require_own(expressions: Sequence[exp.Expr], *relations: Relation) -> None:
    """Only a WHERE can pass conditions on the outer query to the join with it."""
    known = {c.name for r in relations for c in r.columns}
    if missing := {name for e in expressions for name in referenced(e)} - known:
        raise UncarriedError(missing)


def _is_true(condition: exp.Expr) -> bool:
    return isinstance(condition.unnest(), exp.Boolean) and bool(condition.unnest().this)


def _joined(side: str, left: Relation, right: Relation, conditions: list[exp.Expr]) -> Relation:
    if side == "":
        return inner_join(left, right, conditions)
    condition = all_of(conditions)
    if side == "RIGHT":
        return OuterJoin("left", right, left, condition)
    return OuterJoin("left" if side == "LEFT" else "full", left, right, condition)


def _is_grouped_join(node: exp.Subquery) -> bool:
    """Whether the parentheses enclose a join or a table, not a query."""
    inner = node.this
    while isinstance(inner, exp.Subquery) and not inner.alias:
        if inner.args.get("joins"):
            return True
        inner = inner.this
    return isinstance(inner, exp.Table | exp.Subquery)
