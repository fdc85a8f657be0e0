"""FROM: tables, subqueries, functions, VALUES and how they are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.errors import Code
from millstream.naming import fold, split_name
from millstream.sql.postgres import set_returning
from millstream.sql.postgres import types as t
from millstream.sql.postgres.attached_types import column_type
from millstream.sql.postgres.casts import unify
from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.json_table import json_table
from millstream.sql.postgres.names import Item, Output, Scope, folded
from millstream.sql.postgres.operands import compare
from millstream.sql.postgres.refusals import RefusalError, refused, wrong
from millstream.sql.postgres.spark_builders import ONE, TRUE, Node, and_, fn, own_name, quoted_name
from millstream.sql.postgres.spark_queries import select, source, table_alias, titled, union_all
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.sources import Source, View

if TYPE_CHECKING:
    from millstream.sql.postgres.queries import Translator


class FromClause:
    """Fills a scope while it translates the clause."""

    def __init__(self, translator: Translator, scope: Scope) -> None:
        self._translator = translator
        self._scope = scope

    def read(self, query: exp.Select) -> exp.Select:
        """A SELECT that has only this clause; an empty SELECT if the query has none."""
        rows = exp.Select()
        first = query.args.get("from_")
        if first is None:
            return rows
        item = self._item(first.this)
        joins: list[exp.Join] = []
        if isinstance(item, exp.Lateral) and not isinstance(item.this, exp.Subquery):
            # a generator is joined to a row: as the first item of FROM, to one made for it
            joins.append(exp.Join(this=item, kind="CROSS"))
            item = source(select([titled(ONE, "__ms_one")]), own_name("__ms_row"))
        has_comma = False
        for node in (*query.args.get("joins", ()), *query.args.get("laterals", ())):
            if has_comma and (bound := _looks_back(node)):
                hint = "a comma binds less tightly than a join: write CROSS JOIN, in the order you mean"
                raise refused(f"{bound} after a comma", node, self._translator.sql, hint)
            has_comma = has_comma or not any(node.args.get(k) for k in ("side", "kind", "on", "using", "method"))
            joins.append(self._join(node))
        rows.set("from_", exp.From(this=item))
        rows.set("joins", joins)
        return rows

    def _join(self, node: exp.Expr) -> exp.Join:
        if isinstance(node, exp.Lateral):
            return exp.Join(this=self._item(node), kind="CROSS")
        method, side, kind = (str(node.args.get(k) or "").upper() for k in ("method", "side", "kind"))
        if method not in {"", "NATURAL"} or kind not in {"", "INNER", "CROSS", "OUTER"}:
            raise refused(f"{method} {side} {kind} JOIN".strip(), node, self._translator.sql)
        before = len(self._scope.items)
        item = self._item(node.this)
        on, using = node.args.get("on"), node.args.get("using")
        if method == "NATURAL" or using:
            names = [folded(u.this if isinstance(u, exp.Column) else u) for u in using or ()] or self._common(before)
            return exp.Join(this=item, side=side or None, on=self._merge(names, before, side, node))
        if on is None:
            return exp.Join(this=item, side=side or None, kind=None if side else "CROSS")
        condition = Expressions(self._translator, self._scope).condition(on)
        return exp.Join(this=item, side=side or None, on=condition)

    def _common(self, before: int) -> list[str]:
        """Names that both sides have, in the left side's order."""
        right = {c.name for i in self._scope.items[before:] for c in i.columns}
        left = self._scope.unqualified(self._scope.items[:before])
        return list(dict.fromkeys(name for name, _ in left if name in right))

    def _merge(self, names: list[str], before: int, side: str, node: exp.Expr) -> Node:
        """The condition of USING; each pair of columns is one column from now on, referred to by its bare name."""
        sql, scope = self._translator.sql, self._scope
        tests, shared = [], {}
        left, right = scope.unqualified(scope.items[:before]), scope.items[before]
        for name in names:
            ours, other = [value for n, value in left if n == name], right.find(name)
            if not ours or other is None:
                raise wrong(f"there is no column {name} on both sides", node, sql, Code.UNKNOWN_COLUMN)
            if len(ours) > 1:
                raise wrong(f"the column {name} of USING is ambiguous", node, sql)
            one, two = ours[0], right.value(other)
            try:
                tests.append(compare("=", one, two).tree)
                shared[name] = _merged(one, two, side)
            except RefusalError as e:
                raise refused(f"USING ({name}) of {one.type} and {two.type}", node, sql, e.hint) from e
        scope.merged |= {(i.name, name) for i in scope.items for name in names if i.find(name) is not None}
        # a name that is merged again is a new column, and comes first
        scope.shared = shared | {n: v for n, v in scope.shared.items() if n not in shared}
        return and_(*tests) if tests else TRUE

    # Items

    def _item(self, node: exp.Expr) -> exp.Expr:
        try:
            return self._read(node)
        except RefusalError as e:
            raise refused(e.what, node, self._translator.sql, e.hint) from e

    def _read(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Table):
            if node.args.get("joins"):
                raise RefusalError("a join in parentheses", "write the joins one after the other")
            if isinstance(node.this, exp.Anonymous | exp.JSONTable):
                return self._function(node, node.this)
            return self._table(node)
        if isinstance(node, exp.Unnest):
            return self._function(node, exp.Anonymous(this="unnest", expressions=node.expressions))
        if isinstance(node, exp.Lateral):
            return self._lateral(node)
        if isinstance(node, exp.Values):
            return self._values(node)
        if isinstance(node, exp.Subquery):
            if node.args.get("joins") or not isinstance(node.this, exp.Query):
                raise RefusalError("a join in parentheses", "write the joins one after the other")
            query, columns = self._translator.query(node.this, self._scope.outer, self._scope.ctes)
            return exp.Subquery(this=query, alias=self._add(node, columns))
        raise RefusalError(f"{node.sql(dialect='postgres')} in FROM")

    def _table(self, node: exp.Table) -> exp.Table:
        if node.args.get("ordinality"):
            raise RefusalError("WITH ORDINALITY of a table")
        parts = tuple(folded(p) for p in node.parts)
        columns = self._scope.ctes.get(parts[0]) if len(parts) == 1 else None
        if columns is None and len(parts) == 1 and any(n.lower() == parts[0].lower() for n in self._scope.ctes):
            hint = f"Spark would read a query of WITH instead of {parts[0]}: rename it"
            raise RefusalError("a table and a query of WITH whose names differ only in case", hint)
        if columns is None:
            columns = self._columns(node, parts)
        table = _table_named(parts)
        table.set("alias", self._add(node, columns, default=parts[-1], path=parts[:-1]))
        return table

    def _columns(self, node: exp.Table, parts: tuple[str, ...]) -> tuple[Output, ...]:
        found = self._translator.sources.find(parts)
        if found is None:
            hint = "create it first, or check the spelling"
            raise wrong(f"there is no table {'.'.join(parts)}", node, self._translator.sql, Code.UNKNOWN_TABLE, hint)
        if isinstance(found, View) and found.columns is not None:
            described = found.columns
        elif isinstance(found, View):
            described = self._translator.analyzer.describe(select([exp.Star()], _table_named(parts)))
        else:
            assert isinstance(found, Source)
            described = found.columns
        # the columns of an attached database have PostgreSQL's own names: "Total" is not total
        is_attached = len(split_name(found.id)) == 3
        names = [c.name if is_attached else fold(c.name) for c in described]
        native = dict(found.native_types)
        types = [column_type(c.type, native.get(c.name)) for c in described]
        return tuple(Output(name, type_) for name, type_ in zip(names, types, strict=True))

    def _lateral(self, node: exp.Lateral) -> exp.Lateral:
        if node.args.get("view") or node.args.get("outer"):
            raise RefusalError("LATERAL VIEW")
        inner = node.this
        if isinstance(inner, exp.Subquery):
            if node.args.get("ordinality"):
                raise RefusalError("WITH ORDINALITY of a subquery")
            query, columns = self._translator.query(inner.this, self._scope, self._scope.ctes)
            return exp.Lateral(this=exp.Subquery(this=query), alias=self._add(node, columns))
        if isinstance(inner, exp.Unnest):
            holder = inner.copy()
            holder.set("alias", node.args.get("alias"))
            holder.set("offset", inner.args.get("offset") or node.args.get("ordinality"))
            return self._function(holder, exp.Anonymous(this="unnest", expressions=inner.expressions))
        if isinstance(inner, exp.Anonymous | exp.JSONTable):
            return self._function(node, inner)
        raise RefusalError(f"LATERAL {inner.sql(dialect='postgres')}")

    def _function(self, node: exp.Expr, function: exp.Expr) -> exp.Lateral:
        expressions = Expressions(self._translator, self._scope)
        schema = ".".join(folded(node.args[part]) for part in ("catalog", "db") if node.args.get(part))
        if schema not in {"", "pg_catalog"}:
            raise RefusalError(f"a function of the schema {schema} in FROM")
        alias = node.args.get("alias")
        names = (
            [folded(c.this if isinstance(c, exp.ColumnDef) else c) for c in (alias.args.get("columns") or ())]
            if alias
            else []
        )
        if isinstance(function, exp.JSONTable):
            called, found = "json_table", json_table(function, expressions.translate)
        else:
            called = str(function.this).lower()
            found = set_returning.series(called, [expressions.translate(a) for a in function.expressions])
        offset = node.args.get("offset")
        with_ordinality = bool(offset or node.args.get("ordinality"))
        if isinstance(offset, exp.Identifier):  # the parser keeps the last column's name separately
            names.append(folded(offset))
        title = folded(alias.this) if alias is not None and alias.this is not None else called
        columns = list(found.columns)
        is_scalar = len(columns) == 1 and not found.is_struct
        if is_scalar and not found.is_named:
            columns = [Output(title, columns[0].type)]
        if with_ordinality:
            columns.append(Output("ordinality", t.BIGINT))
        if len(names) > len(columns):
            raise RefusalError(f"{called} with {len(names)} column names")
        columns = [Output(n, c.type) for n, c in zip(names, columns, strict=False)] + columns[len(names) :]
        item = Item(
            title,
            tuple(columns),
            is_scalar=is_scalar and not with_ordinality,
            alias=self._scope.alias_for(title),
        )
        self._scope.items.append(item)
        shown = table_alias(item.shown, [quoted_name(c.name) for c in columns])
        return exp.Lateral(this=found.generator(ordinality=with_ordinality), alias=shown)

    def _values(self, node: exp.Values) -> exp.Subquery:
        scope = Scope(outer=self._scope.outer, ctes=self._scope.ctes)
        query, columns = values_query(Expressions(self._translator, scope), node)
        return exp.Subquery(this=query, alias=self._add(node, columns))

    def _add(
        self, node: exp.Expr, columns: tuple[Output, ...], default: str | None = None, path: tuple[str, ...] = ()
    ) -> exp.TableAlias:
        """Add an item to the scope; returns its alias, with the columns' names where they are given."""
        alias = node.args.get("alias")
        given = alias.this if alias is not None else None
        title = folded(given) if given is not None else default
        if title is None:
            title = f"__ms_unnamed_{len(self._scope.items) + 1}"
        names = [folded(c) for c in (alias.args.get("columns") or ())] if alias is not None else []
        if len(names) > len(columns):
            raise RefusalError(f"{title} with {len(names)} column names, of {len(columns)} columns")
        renamed = tuple(Output(n, c.type) for n, c in zip(names, columns, strict=False)) + columns[len(names) :]
        if any(i.name == title for i in self._scope.items):
            raise wrong(f"the name {title} is used twice in FROM", node, self._translator.sql)
        item = Item(title, renamed, path=path if given is None else (), alias=self._scope.alias_for(title))
        self._scope.items.append(item)
        return table_alias(item.shown, [quoted_name(c.name) for c in renamed] if names else ())


def _table_named(parts: tuple[str, ...]) -> exp.Table:
    names = [quoted_name(part) for part in reversed(parts)]
    return exp.Table(**dict(zip(("this", "db", "catalog"), names, strict=False)))


def _looks_back(node: exp.Expr) -> str | None:
    """The kind of a join that would mean something else with more items on its left side."""
    side = node.args.get("side")
    if side in {"RIGHT", "FULL"}:
        return f"{side} JOIN"
    return "NATURAL JOIN" if node.args.get("method") else "USING" if node.args.get("using") else None


def _merged(left: Value, right: Value, side: str) -> Value:
    """The column that USING makes of two: the one with the common type, unless an outer join may pad it."""
    (one, two), type_ = unify([left, right])
    if side == "FULL":
        return Value(fn("COALESCE", one.tree, two.tree), type_)
    if side == "RIGHT":
        return two
    return right if not side and right.type == type_ and left.type != type_ else one


def values_query(expressions: Expressions, node: exp.Values) -> tuple[exp.Query, tuple[Output, ...]]:
    """VALUES as a query; its columns are column1, column2, ..."""
    table: list[list[Value]] = []
    for row in node.expressions:
        items = row.expressions if isinstance(row, exp.Tuple) else [row]
        table.append([expressions.scalar(i) for i in items])
    if len({len(row) for row in table}) != 1:
        raise RefusalError("VALUES of rows of different lengths")
    unified = [unify(list(column)) for column in zip(*table, strict=True)]
    outputs = tuple(Output(f"column{i + 1}", type_) for i, (_, type_) in enumerate(unified))
    first, *others = [[column[0][i].tree for column in unified] for i in range(len(table))]
    head = select([titled(value, o.name) for value, o in zip(first, outputs, strict=True)])
    return union_all([head, *(select(line) for line in others)]), outputs
