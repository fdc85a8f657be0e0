"""Query tree to operators: names bound, types known, everything that is not understood refused.

The order of a SELECT's clauses is the order of the functions here: FROM and joins, WHERE, GROUP BY, HAVING, SELECT,
DISTINCT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Aggregate, Column, Filter, InnerJoin, Item, OuterJoin, Project, Relation, Scan, UnionAll
from millstream.ops.expressions import all_of, cast, col
from millstream.ops.relations import referenced
from millstream.sql.group import Grouping
from millstream.sql.parse import parse_query, position_of
from millstream.sql.scope import Namer, Scope, Visible
from millstream.sql.sources import Analyzer, Sources, View
from millstream.sql.typing import describe_relation, typed
from millstream.sql.unsupported import unsupported

MAX_VIEW_DEPTH = 10

# Clauses of a SELECT this version cannot maintain; the key is sqlglot's name of the clause.
_REFUSED_CLAUSES = {
    "limit": "LIMIT",
    "offset": "OFFSET",
    "windows": "a named WINDOW",
    "qualify": "QUALIFY",
    "laterals": "LATERAL VIEW",
    "pivots": "PIVOT",
    "locks": "FOR UPDATE",
    "sample": "TABLESAMPLE",
    "match": "MATCH_RECOGNIZE",
    "connect": "CONNECT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A query as an operator tree and the names its columns have outside."""

    relation: Relation
    names: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[Visible, ...]:
        return tuple(Visible(n, c) for n, c in zip(self.names, self.relation.schema, strict=True))


def lower(query: exp.Query, sql: str, sources: Sources, analyzer: Analyzer) -> Lowered:
    """Lower a parsed query.

    Raises:
        MillstreamError: the query is wrong, or uses what cannot be maintained.
    """
    lowering = _Lowering(sql, sources, analyzer, Namer())
    result = lowering.query(query, {})
    return Lowered(result.relation, result.names, tuple(lowering.notices))


@dataclass
class _Lowering:
    sql: str
    sources: Sources
    analyzer: Analyzer
    namer: Namer
    notices: list[str] = field(default_factory=list)
    depth: int = 0

    # Queries

    def query(self, node: exp.Expression, ctes: dict[str, Lowered]) -> Lowered:
        if isinstance(node, exp.Subquery):
            self._refuse_clauses(node)
            return self.query(node.this, self._with(node, ctes))
        if isinstance(node, exp.Query):
            ctes = self._with(node, ctes)
        if isinstance(node, exp.Union):
            return self._union(node, ctes)
        if isinstance(node, exp.Select):
            return self._select(node, ctes)
        raise unsupported(type(node).__name__.upper(), node, self.sql)

    def _with(self, node: exp.Query, ctes: dict[str, Lowered]) -> dict[str, Lowered]:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        if with_.args.get("recursive"):
            raise unsupported("WITH RECURSIVE", with_, self.sql)
        ctes = dict(ctes)
        for cte in with_.expressions:
            lowered = self.query(cte.this, ctes)
            ctes[cte.alias.lower()] = _renamed(lowered, [c.name for c in cte.args["alias"].columns])
        return ctes

    def _union(self, node: exp.Union, ctes: dict[str, Lowered]) -> Lowered:
        if type(node) is not exp.Union:
            raise unsupported(type(node).__name__.upper(), node, self.sql)
        if node.args.get("by_name"):
            raise unsupported("UNION BY NAME", node, self.sql)
        self._refuse_clauses(node)
        branches = [self.query(node.this, ctes), self.query(node.expression, ctes)]
        if len({len(b.names) for b in branches}) != 1:
            raise MillstreamError(
                Code.QUERY_INVALID, "the branches of a UNION differ in their number of columns", sql=self.sql
            )
        types = [c.type for c in describe_relation(self.analyzer, UnionAll(tuple(b.relation for b in branches)))]
        relation: Relation = UnionAll(tuple(self._cast(b.relation, types) for b in branches))
        if node.args.get("distinct"):
            relation = self._distinct(relation)
        return Lowered(relation, branches[0].names)

    def _cast(self, relation: Relation, types: list[str]) -> Relation:
        """Give the columns of a union's branch the union's types."""
        items = tuple(
            Item(
                col(c.name) if c.type == t else cast(col(c.name), t),
                c if c.type == t else Column(self.namer.fresh(c.name), t),
            )
            for c, t in zip(relation.schema, types, strict=True)
        )
        return relation if all(c.type == t for c, t in zip(relation.schema, types, strict=True)) else Project(relation, items)

    def _distinct(self, relation: Relation) -> Relation:
        return Aggregate(relation, tuple(Item(col(c.name), c) for c in relation.schema), ())

    # SELECT

    def _select(self, node: exp.Select, ctes: dict[str, Lowered]) -> Lowered:
        self._refuse_clauses(node)
        scope = Scope(self.sql)
        relation = self._from(node, scope, ctes)
        if where := node.args.get("where"):
            relation = _filtered(relation, _conjuncts(self._bound(scope, where.this)))
        selected = self._select_list(node, scope)
        grouped = node.args.get("group") or node.args.get("having") or any(
            e.find(exp.AggFunc) for e, _ in selected
        )
        if grouped:
            relation, selected = self._group(node, scope, relation, selected)
        relation = self._project(relation, selected)
        if distinct := node.args.get("distinct"):
            if distinct.args.get("on"):
                raise unsupported("DISTINCT ON", node, self.sql)
            relation = self._distinct(relation)
        return Lowered(relation, tuple(name for _, name in selected))

    def _select_list(self, node: exp.Select, scope: Scope) -> list[tuple[exp.Expression, str]]:
        selected: list[tuple[exp.Expression, str]] = []
        for item in node.expressions:
            if isinstance(item, exp.Star):
                selected += [(col(v.column.name), v.name) for v in self._star(item, scope.all_columns())]
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                columns = scope.items.get(item.table.lower())
                if columns is None:
                    raise MillstreamError(
                        Code.UNKNOWN_TABLE, f"{item.table}.* names no table of the FROM clause", sql=self.sql
                    )
                selected += [(col(v.column.name), v.name) for v in self._star(item.this, columns)]
            else:
                bound = self._bound(scope, item.unalias())
                name = item.alias or (item.name if isinstance(item, exp.Column) else item.sql(dialect="spark").lower())
                selected.append((bound, name))
                if item.alias:
                    scope.aliases.setdefault(item.alias.lower(), bound)
        return selected

    def _star(self, star: exp.Star, columns: tuple[Visible, ...]) -> list[Visible]:
        if star.args.get("replace") or star.args.get("rename"):
            raise unsupported("* REPLACE", star, self.sql, "name the columns")
        left_out = {e.name.lower() for e in star.args.get("except_") or ()}
        return [v for v in columns if v.name.lower() not in left_out]

    def _group(
        self, node: exp.Select, scope: Scope, relation: Relation, selected: list[tuple[exp.Expression, str]]
    ) -> tuple[Relation, list[tuple[exp.Expression, str]]]:
        grouping = Grouping(relation, self.namer, self.analyzer, self.sql)
        group = node.args.get("group")
        if group is not None:
            for clause in ("cube", "rollup", "grouping_sets", "totals", "all"):
                if group.args.get(clause):
                    raise unsupported(f"GROUP BY {clause.replace('_', ' ').upper()}", group, self.sql)
            for key in group.expressions:
                grouping.add_key(self._group_key(key, scope, selected))
        selected = [(grouping.rewrite(e), name) for e, name in selected]
        having = node.args.get("having")
        predicate = grouping.rewrite(self._bound(scope, having.this)) if having else None
        result = grouping.build()
        if predicate is not None:
            result = Filter(result, predicate)
        return result, selected

    def _group_key(
        self, key: exp.Expression, scope: Scope, selected: list[tuple[exp.Expression, str]]
    ) -> exp.Expression:
        """A key may be an ordinal, a column, an alias of the SELECT list, or an expression."""
        if isinstance(key, exp.Literal) and key.is_int:
            position = int(key.name)
            if not 1 <= position <= len(selected):
                raise MillstreamError(Code.QUERY_INVALID, f"GROUP BY {position} is outside the SELECT list", sql=self.sql)
            return selected[position - 1][0]
        if isinstance(key, exp.Column) and key.name.lower() == "all" and not key.table:
            raise unsupported("GROUP BY ALL", key, self.sql, "name the keys")
        if isinstance(key, exp.Tuple):
            raise unsupported("a tuple as grouping key", key, self.sql, "write the keys without parentheses")
        return self._bound(scope, key)

    def _project(self, relation: Relation, selected: list[tuple[exp.Expression, str]]) -> Relation:
        """The SELECT list; a list that only picks columns keeps their names."""
        expressions = [e for e, _ in selected]
        types = [c.type for c in typed(self.analyzer, relation, expressions)]
        items: list[Item] = []
        taken: set[str] = set()
        for (expression, name), type_ in zip(selected, types, strict=True):
            plain = isinstance(expression, exp.Column) and expression.name.lower() not in taken
            column = Column(expression.name if plain else self.namer.fresh(name), type_)
            taken.add(column.name.lower())
            items.append(Item(expression, column))
        return Project(relation, tuple(items))

    # FROM

    def _from(self, node: exp.Select, scope: Scope, ctes: dict[str, Lowered]) -> Relation:
        from_ = node.args.get("from_")
        if from_ is None:
            raise unsupported("SELECT without FROM", node, self.sql)
        relation = self._from_item(from_.this, scope, ctes)
        for join in (*(from_.this.args.get("joins") or ()), *(node.args.get("joins") or ())):
            relation = self._join(relation, join, scope, ctes)
        return relation

    def _join(self, left: Relation, join: exp.Join, scope: Scope, ctes: dict[str, Lowered]) -> Relation:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if join.args.get("using") or (join.args.get("method") or "").upper() == "NATURAL":
            raise unsupported("USING or NATURAL", join, self.sql, "write the condition as ON")
        if kind in {"SEMI", "ANTI"} or side in {"SEMI", "ANTI"} or join.args.get("method"):
            raise unsupported(f"{side} {kind} JOIN".strip(), join, self.sql)
        right = self._from_item(join.this, scope, ctes)
        on = self._bound(scope, join.args["on"]) if join.args.get("on") is not None else None
        if side == "":
            return _inner_join(left, right, _conjuncts(on) if on is not None else [])
        condition = on if on is not None else exp.true()
        if side == "RIGHT":
            return OuterJoin("left", right, left, condition)
        return OuterJoin("left" if side == "LEFT" else "full", left, right, condition)

    def _from_item(self, node: exp.Expression, scope: Scope, ctes: dict[str, Lowered]) -> Relation:
        for clause in ("sample", "pivots", "laterals", "version", "when"):
            if node.args.get(clause):
                raise unsupported(_REFUSED_CLAUSES.get(clause, "time travel"), node, self.sql)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            lowered = _renamed(self.query(node.this, self._with(node, ctes)), node.alias_column_names)
            scope.add(node.alias or f"__subquery{len(scope.items)}", lowered.visible, node)
            return lowered.relation
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return self._table(node, scope, ctes)
        if isinstance(node, exp.Paren | exp.Subquery) or (isinstance(node, exp.Table) and isinstance(node.this, exp.Table)):
            raise unsupported("a parenthesised join", node, self.sql, "write the joins one after the other")
        raise unsupported(f"{node.sql(dialect='spark')} in FROM", node, self.sql)

    def _table(self, node: exp.Table, scope: Scope, ctes: dict[str, Lowered]) -> Relation:
        parts = [part.name for part in node.parts]
        alias = node.alias or parts[-1]
        if len(parts) == 1 and parts[0].lower() in ctes:
            lowered = self._again(ctes[parts[0].lower()])
        else:
            found = self.sources.find(parts)
            if found is None:
                raise MillstreamError(
                    Code.UNKNOWN_TABLE,
                    f"there is no table {'.'.join(parts)}",
                    position=position_of(node),
                    sql=self.sql,
                    hint="create it first, or check the spelling",
                )
            if isinstance(found, View):
                lowered = self._again(self._view(found, node))
            else:
                columns = tuple(Column(self.namer.fresh(f"{alias}_{c.name}"), c.type) for c in found.columns)
                names = tuple(c.name for c in found.columns)
                lowered = Lowered(Scan(found.id, names, columns), names)
        lowered = _renamed(lowered, node.alias_column_names)
        scope.add(alias, lowered.visible, node)
        return lowered.relation

    def _view(self, view: View, node: exp.Table) -> Lowered:
        if self.depth == MAX_VIEW_DEPTH:
            raise unsupported(f"views nested more than {MAX_VIEW_DEPTH} deep", node, self.sql)
        inner = _Lowering(view.text, self.sources, self.analyzer, self.namer, self.notices, self.depth + 1)
        return inner.query(parse_query(view.text), {})

    def _again(self, lowered: Lowered) -> Lowered:
        """A relation that may stand in the query several times: each time under names of its own.

        The relation below the renaming stays the same object, so that its delta is computed once.
        """
        items = tuple(
            Item(col(c.name), Column(self.namer.fresh(c.name), c.type)) for c in lowered.relation.schema
        )
        return Lowered(Project(lowered.relation, items), lowered.names)

    # Checks

    def _bound(self, scope: Scope, expression: exp.Expression) -> exp.Expression:
        for node in expression.walk():
            if isinstance(node, exp.Query):
                raise unsupported("a subquery in an expression", node, self.sql, "join with it")
            if isinstance(node, exp.Window):
                raise unsupported("a window function", node, self.sql)
            if isinstance(node, exp.UDTF):
                raise unsupported(node.sql_name(), node, self.sql)
        return scope.bind(expression)

    def _refuse_clauses(self, node: exp.Expression) -> None:
        for clause, name in _REFUSED_CLAUSES.items():
            if node.args.get(clause):
                raise unsupported(name, node.args[clause] if isinstance(node.args[clause], exp.Expression) else node, self.sql)
        if node.args.get("order"):
            self.notices.append("ORDER BY is dropped: a table has no order, sort when you read it")


def _renamed(lowered: Lowered, names: list[str]) -> Lowered:
    return Lowered(lowered.relation, tuple(names)) if names else lowered


def _conjuncts(predicate: exp.Expression) -> list[exp.Expression]:
    predicate = predicate.unnest()
    if isinstance(predicate, exp.And):
        return [*_conjuncts(predicate.left), *_conjuncts(predicate.right)]
    return [predicate]


def _inner_join(left: Relation, right: Relation, conditions: list[exp.Expression]) -> Relation:
    """Join, flattening joins of joins: the n-ary delta rule wants all inputs side by side."""
    inputs: list[Relation] = []
    collected: list[exp.Expression] = []
    for side in (left, right):
        if isinstance(side, InnerJoin):
            inputs += side.inputs
            collected += side.conditions
        else:
            inputs.append(side)
    return _filtered(InnerJoin(tuple(inputs), tuple(collected)), conditions)


def _filtered(relation: Relation, conditions: list[exp.Expression]) -> Relation:
    """Apply conjuncts as far down as an inner join lets them."""
    if not isinstance(relation, InnerJoin):
        return Filter(relation, all_of(conditions)) if conditions else relation
    inputs = list(relation.inputs)
    across: list[exp.Expression] = []
    for condition in conditions:
        names = referenced(condition)
        homes = [i for i, r in enumerate(inputs) if names & {c.name for c in r.schema}]
        if len(homes) == 1:
            inputs[homes[0]] = _filtered(inputs[homes[0]], [condition])
        else:
            across.append(condition)
    return InnerJoin(tuple(inputs), (*relation.conditions, *across))
