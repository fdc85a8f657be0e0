"""Queries: SELECT, set operations and WITH, with PostgreSQL's names for their columns."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside
from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.from_items import values_query
from millstream.sql.postgres.literals import unknown_literal
from millstream.sql.postgres.names import Output, Scope, folded
from millstream.sql.postgres.order_and_limit import OrderAndLimit
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, refused, wrong
from millstream.sql.postgres.selects import SelectTranslation
from millstream.sql.postgres.spark_builders import column, own_name, quoted_name
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.spark_queries import select, source, table_alias, titled
from millstream.sql.sources import Analyzer, Sources

Translated = tuple[exp.Query, tuple[Output, ...]]
"""A query, translated to Spark, and its columns."""
Ctes = Mapping[str, tuple[Output, ...]]


class Translator:
    """Translates one text."""

    def __init__(self, sql: str, sources: Sources, analyzer: Analyzer) -> None:
        self.sql = sql
        self.sources = sources
        self.analyzer = analyzer
        self.notices: list[str] = []

    def subquery(self, node: exp.Expr, outer: Scope) -> Translated:
        """A query inside an expression."""
        return self.query(node, outer, outer.ctes)

    def query(self, node: exp.Expr, outer: Scope | None, ctes: Ctes, *, in_set: bool = False) -> Translated:
        """A query, translated to Spark, and its columns.

        Args:
            in_set: the query is a side of a set operation, which determines the type of literals without one.
        """
        try:
            with_, ctes = self._with(node.args.get("with_"), outer, ctes)
            query, columns = self._body(node, outer, ctes, in_set=in_set)
        except RefusalError as e:
            raise refused(e.what, node, self.sql, e.hint) from e
        if not in_set:
            query, columns = _with_types(query, columns, tuple(_settled(c.type) for c in columns))
        if with_ is not None:
            query.set("with_", with_)
        return query, columns

    def _body(self, node: exp.Expr, outer: Scope | None, ctes: Ctes, *, in_set: bool) -> Translated:
        """A query without its WITH."""
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, outer, ctes)
        if isinstance(node, exp.Select):
            return SelectTranslation(self, node, Scope(outer=outer, ctes=ctes), in_set=in_set).query()
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            return self._in_parentheses(node, outer, ctes)
        if isinstance(node, exp.Values):
            return values_query(Expressions(self, Scope(outer=outer, ctes=ctes)), node)
        raise RefusalError(f"{node.sql(dialect='postgres')} as a query")

    def _in_parentheses(self, node: exp.Subquery, outer: Scope | None, ctes: Ctes) -> Translated:
        if node.args.get("alias") or node.args.get("joins"):
            raise RefusalError("a query in parentheses with an alias or a join", "write SELECT * FROM (...)")
        inner, columns = self.query(node.this, outer, ctes, in_set=True)
        query: exp.Query = exp.Subquery(this=inner)
        tail = OrderAndLimit(node, self.sql)
        if not tail.is_empty:
            query = select([exp.Star()], query)
            tail.add_to(query, columns)
        return query, columns

    # WITH

    def _with(self, node: exp.With | None, outer: Scope | None, ctes: Ctes) -> tuple[exp.With | None, Ctes]:
        if node is None:
            return None, ctes
        known = dict(ctes)
        pieces: list[exp.CTE] = []
        recursive = bool(node.args.get("recursive"))
        for cte in node.expressions:
            name = folded(cte.args["alias"].this)
            if any(other != name and other.lower() == name.lower() for other in known):
                raise refused("queries of WITH whose names differ only in case", cte, self.sql, "rename one of them")
            given = [folded(c) for c in cte.args["alias"].args.get("columns") or ()]
            body = cte.this
            start: tuple[Output, ...] | None = None
            if recursive and isinstance(body, exp.SetOperation) and _reads(body, name):
                _, start = self.query(body.this, outer, known)
                known[name] = _renamed(start, given)
            query, columns = self.query(body, outer, known)
            if start is not None and not all(_alike(a.type, b.type) for a, b in zip(start, columns, strict=True)):
                hint = "cast the column to one type on both sides"
                raise refused("a recursion that changes the type of a column", cte, self.sql, hint)
            known[name] = _renamed(columns, given)
            alias = table_alias(quoted_name(name), [quoted_name(c.name) for c in known[name]])
            pieces.append(exp.CTE(this=query, alias=alias))
        return exp.With(expressions=pieces, recursive=recursive), known

    # Set operations

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None, ctes: Ctes) -> Translated:
        left, left_columns = self.query(node.this, outer, ctes, in_set=True)
        right, right_columns = self.query(node.expression, outer, ctes, in_set=True)
        if len(left_columns) != len(right_columns):
            raise wrong("both sides of a set operation need the same number of columns", node, self.sql)
        wanted = []
        for one, two in zip(left_columns, right_columns, strict=True):
            type_ = t.common([_type_beside(one, two), _type_beside(two, one)])
            if type_ is None:
                raise refused(f"{node.key.upper()} of {one.type} and {two.type}", node, self.sql, "cast one of them")
            wanted.append(type_ if {one.type.name, two.type.name} != {"unknown"} else t.UNKNOWN)
        left, columns = _with_types(left, left_columns, tuple(_settled(w) for w in wanted))
        right, _ = _with_types(right, right_columns, tuple(_settled(w) for w in wanted))
        if node.args.get("distinct") or not isinstance(node, exp.Union):
            refuse_unequal(wanted, node.key.upper())
        kind = type(node)
        query = kind(
            this=_side(node.this, left),
            expression=_side(node.expression, right),
            distinct=bool(node.args.get("distinct")),
        )
        OrderAndLimit(node, self.sql).add_to(query, columns)
        return query, columns


def _with_types(query: exp.Query, columns: tuple[Output, ...], wanted: tuple[t.Type, ...]) -> Translated:
    """The same query with its columns cast to the wanted types."""
    result = tuple(Output(c.name, type_) for c, type_ in zip(columns, wanted, strict=True))
    if all(_alike(c.type, type_) for c, type_ in zip(columns, wanted, strict=True)):
        return query, result
    names = [f"__ms_c{i}" for i in range(len(columns))]
    items = [
        titled(column(n) if _alike(c.type, type_) else cast(column(n), type_), c.name)
        for n, c, type_ in zip(names, columns, wanted, strict=True)
    ]
    return select(items, source(query, own_name("__ms_s"), [quoted_name(n) for n in names])), result


def _type_beside(column: Output, other: Output) -> t.Type:
    """A column's type; that of a literal has exactly the digits of the literal."""
    return beside(unknown_literal(column.constant), other.type).type if column.constant is not None else column.type


def _settled(type_: t.Type) -> t.Type:
    return t.TEXT if type_.name == "unknown" else type_


def _alike(one: t.Type, two: t.Type) -> bool:
    """Whether Spark needs no cast."""
    if one.name == "unknown" or one.name not in t.KNOWN:
        return one == two
    return one.spark == two.spark


def _renamed(columns: tuple[Output, ...], names: list[str]) -> tuple[Output, ...]:
    return tuple(Output(n, c.type) for n, c in zip(names, columns, strict=False)) + columns[len(names) :]


def _reads(node: exp.Expr, name: str) -> bool:
    return any(isinstance(x.this, exp.Identifier) and folded(x.this) == name for x in node.find_all(exp.Table))


def _side(node: exp.Expr, query: exp.Query) -> exp.Query:
    """A side of a set operation: in parentheses if it had them, or if it is more than a plain SELECT now."""
    if isinstance(query, exp.Subquery) and isinstance(node, exp.Subquery):
        return query
    is_bare = isinstance(node, exp.Select | exp.SetOperation) and not (
        node.args.get("order") or node.args.get("limit") or node.args.get("offset") or node.args.get("with_")
    )
    return query if is_bare else exp.Subquery(this=query)
