"""Query tree to operators: names bound, types known, everything that is not understood refused.

The order of a SELECT's clauses is the order of the functions here: FROM and joins, WHERE, SELECT list, GROUP BY,
HAVING, DISTINCT.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Aggregate, AntiJoin, Column, Filter, Item, Project, Relation, SemiJoin, UnionAll
from millstream.ops.expressions import all_of, cast, col, keep, same, wrapped
from millstream.sql.clauses import (
    refuse_aggregates,
    refuse_group_clauses,
    refuse_in_expression,
    refuse_query_clauses,
)
from millstream.sql.conditions import conjuncts
from millstream.sql.context import Context, Ctes, Lowered
from millstream.sql.from_clause import FromClause, renamed
from millstream.sql.group import Grouping, with_known_aggregates
from millstream.sql.parse import parse_query, position_of
from millstream.sql.scope import Scope, Visible
from millstream.sql.sources import Analyzer, Sources
from millstream.sql.subqueries import Subqueries
from millstream.sql.typing import describe_relation, typed
from millstream.sql.unsupported import invalid, unsupported

__all__ = ["Lowered", "lower"]

Selected = list[tuple[exp.Expr, str]]
"""The SELECT list: bound expressions and the names they have outside."""


def lower(query: exp.Query, sql: str, sources: Sources, analyzer: Analyzer) -> Lowered:
    """Lower a parsed query.

    Raises:
        MillstreamError: the query is wrong, or uses what cannot be maintained.
    """
    context = Context(sql, sources, analyzer)
    result = _Lowering(context).query(with_known_aggregates(query), {})
    return Lowered(result.relation, result.names, tuple(dict.fromkeys(context.notices)))


@dataclass(frozen=True)
class _Lowering:
    context: Context

    def view(self, text: str) -> Lowered:
        return _Lowering(self.context.inside_view(text)).query(with_known_aggregates(parse_query(text)), {})

    # Queries

    def query(self, node: exp.Expr, ctes: Ctes) -> Lowered:
        if isinstance(node, exp.Query):
            refuse_query_clauses(node, self.context)
            ctes = self._with(node, ctes)
        match node:
            case exp.Subquery():
                return self.query(node.this, ctes)
            case exp.Select():
                return self._select(node, ctes)
            case exp.Union():
                return self._union(node, ctes)
            case exp.Intersect() | exp.Except():
                return self._intersect_or_except(node, ctes)
        raise unsupported(type(node).__name__.upper(), node, self.context.sql)

    def _with(self, node: exp.Query, ctes: Ctes) -> Ctes:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        if with_.args.get("recursive"):
            raise unsupported("WITH RECURSIVE", with_, self.context.sql)
        defined: dict[str, Lowered] = {}
        for cte in with_.expressions:
            if cte.alias.lower() in defined:
                raise invalid(
                    f"two common table expressions are called {cte.alias}", cte.args["alias"], self.context.sql
                )
            lowered = self.query(cte.this, {**ctes, **defined})
            names = [c.name for c in cte.args["alias"].columns]
            defined[cte.alias.lower()] = renamed(lowered, names, cte.args["alias"], self.context)
        return {**ctes, **defined}

    def _union(self, node: exp.Union, ctes: Ctes) -> Lowered:
        branches, names = self._branches(node, ctes)
        relation: Relation = UnionAll(branches)
        return Lowered(_distinct(relation) if node.args.get("distinct") else relation, names)

    def _intersect_or_except(self, node: exp.SetOperation, ctes: Ctes) -> Lowered:
        """The distinct rows of the first branch with, or without, an equal row in the second; NULLs are equal here."""
        word = "INTERSECT" if isinstance(node, exp.Intersect) else "EXCEPT"
        if not node.args.get("distinct"):
            raise unsupported(f"{word} ALL", node, self.context.sql)
        (left, right), names = self._branches(node, ctes)
        pairs = zip(left.columns, right.columns, strict=True)
        equal = all_of(same(col(x.name), col(y.name)) for x, y in pairs)
        join = SemiJoin if isinstance(node, exp.Intersect) else AntiJoin
        return Lowered(_distinct(join(left, right, equal)), names)

    def _branches(self, node: exp.SetOperation, ctes: Ctes) -> tuple[tuple[Relation, Relation], tuple[str, ...]]:
        """The two sides, in the types they have in common, and the names of the columns."""
        word = type(node).__name__.upper()
        if node.args.get("by_name"):
            what = f"{word} BY NAME" if node.args.get("distinct") else f"{word} ALL BY NAME"
            raise unsupported(what, node, self.context.sql, "name the columns of each branch in order")
        left, right = self.query(node.this, ctes), self.query(node.expression, ctes)
        if len(left.names) != len(right.names):
            message = f"the branches of {_article(word)} differ in their number of columns"
            raise invalid(message, node.expression, self.context.sql)
        united = UnionAll((left.relation, right.relation))
        types = [c.type for c in describe_relation(self.context.analyzer, united)]
        return (self._cast(left.relation, types), self._cast(right.relation, types)), left.names

    def _cast(self, relation: Relation, types: list[str]) -> Relation:
        """Give the columns of a union's branch the union's types."""
        if [c.type for c in relation.schema] == types:
            return relation
        items: list[Item] = []
        for column, type_ in zip(relation.schema, types, strict=True):
            if column.type == type_:
                items.append(Item(col(column.name), column))
            else:
                fresh = Column(self.context.namer.fresh(column.name), type_)
                items.append(Item(cast(col(column.name), type_), fresh))
        return Project(relation, tuple(items))

    # SELECT

    def _select(self, node: exp.Select, ctes: Ctes) -> Lowered:
        scope = Scope(self.context.sql)
        from_ = node.args.get("from_")
        if from_ is None:
            raise unsupported("a SELECT without FROM", node, self.context.sql)
        relation = FromClause(self, ctes, scope).relation(from_.this, node.args.get("joins") or ())
        if where := node.args.get("where"):
            relation, _ = Subqueries(self, ctes, scope).where(relation, conjuncts(where.this))
        selected = self._select_list(node, scope)
        calls = any(expression.find(exp.AggFunc) for expression, _ in selected)
        if node.args.get("group") or node.args.get("having") or calls:
            relation, selected = self._group(node, scope, relation, selected)
        relation = self._project(relation, selected)
        if distinct := node.args.get("distinct"):
            if distinct.args.get("on"):
                raise unsupported("DISTINCT ON", node, self.context.sql)
            relation = _distinct(relation)
        return Lowered(relation, tuple(name for _, name in selected))

    def _select_list(self, node: exp.Select, scope: Scope) -> Selected:
        selected: Selected = []
        for item in node.expressions:
            if isinstance(item, exp.Star):
                selected += self._star(item, scope.columns)
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                if item.table.lower() not in scope.tables:
                    raise MillstreamError(
                        Code.UNKNOWN_TABLE,
                        f"{item.table}.* names no table of the FROM clause",
                        position=position_of(item),
                        sql=self.context.sql,
                        hint=f"the tables are: {', '.join(scope.tables)}",
                    )
                selected += self._star(item.this, scope.tables[item.table.lower()])
            else:
                bound = self._bound(scope, item.unalias())
                name = item.alias or (item.name if isinstance(item, exp.Column) else item.sql(dialect="spark").lower())
                selected.append((bound, name))
                if item.alias:
                    scope.aliases.setdefault(item.alias.lower(), bound)
        return selected

    def _star(self, star: exp.Star, columns: list[Visible] | tuple[Visible, ...]) -> Selected:
        if star.args.get("replace") or star.args.get("rename"):
            raise unsupported("* REPLACE", star, self.context.sql, "name the columns")
        left_out = {e.name.lower(): e for e in star.args.get("except_") or ()}
        for name, node in left_out.items():
            if all(v.name.lower() != name for v in columns):
                raise invalid(f"EXCEPT names {node.name}, which is no column of *", node, self.context.sql)
        return [(col(v.column.name), v.name) for v in columns if v.name.lower() not in left_out]

    def _project(self, relation: Relation, selected: Selected) -> Relation:
        """The SELECT list; a list that only picks columns keeps their names."""
        types = [c.type for c in typed(self.context.analyzer, relation, [e for e, _ in selected])]
        items: list[Item] = []
        taken: set[str] = set()
        for (expression, name), type_ in zip(selected, types, strict=True):
            plain = isinstance(expression, exp.Column) and expression.name.lower() not in taken
            column = Column(expression.name if plain else self.context.namer.fresh(name), type_)
            taken.add(column.name.lower())
            items.append(Item(expression, column))
        return Project(relation, tuple(items))

    # GROUP BY and HAVING

    def _group(
        self, node: exp.Select, scope: Scope, relation: Relation, selected: Selected
    ) -> tuple[Relation, Selected]:
        grouping = Grouping(relation, scope, self.context)
        for key in self._keys(node.args.get("group"), scope, selected):
            grouping.add_key(key)
        selected = [(grouping.rewrite(e), name) for e, name in selected]
        having = node.args.get("having")
        predicate = grouping.rewrite(self._having(having.this, scope, grouping)) if having else None
        result = grouping.build()
        return result if predicate is None else Filter(result, predicate), selected

    def _keys(self, group: exp.Group | None, scope: Scope, selected: Selected) -> list[exp.Expr]:
        if group is None:
            return []
        refuse_group_clauses(group, self.context)
        if group.args.get("all"):
            return [e for e, _ in selected if not e.find(exp.AggFunc)]
        return [self._key(key, group, scope, selected) for key in group.expressions]

    def _key(self, key: exp.Expr, group: exp.Group, scope: Scope, selected: Selected) -> exp.Expr:
        """A key may be an ordinal, a column, an alias of the SELECT list, or an expression."""
        if isinstance(key, exp.Literal) and key.is_int:
            if not 1 <= int(key.name) <= len(selected):
                raise invalid(f"GROUP BY {key.name} is outside the SELECT list", group, self.context.sql)
            bound = selected[int(key.name) - 1][0]
        else:
            bound = self._bound(scope, key)
        refuse_aggregates(bound, "GROUP BY", self.context)
        return bound

    def _having(self, predicate: exp.Expr, scope: Scope, grouping: Grouping) -> exp.Expr:
        """Bind HAVING: outside of aggregates a name is a grouped column, else an alias of the SELECT list."""
        refuse_in_expression(predicate, self.context)

        def resolve(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Filter | exp.AggFunc):
                return scope.bind(node)
            if not isinstance(node, exp.Column):
                return node
            bound, alias = scope.bind(node), None if node.table else scope.aliases.get(node.name.lower())
            return wrapped(alias) if alias is not None and not grouping.has_key(bound) else bound

        return predicate.transform(resolve)

    def _bound(self, scope: Scope, expression: exp.Expr) -> exp.Expr:
        refuse_in_expression(expression, self.context)
        return scope.bind(expression)


def _article(word: str) -> str:
    return f"a {word}" if word == "UNION" else f"an {word}"


def _distinct(relation: Relation) -> Relation:
    return Aggregate(relation, keep(relation.schema), ())
