"""Query tree to operators: names bound, types known, everything unknown refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    Item,
    Project,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    UnionAll,
    walk,
)
from millstream.ops.expressions import ONE, ZERO, all_of, cast, col, compare, keep, same, subtract, total
from millstream.ops.relations import referenced
from millstream.sql.lowering.context import Context, Ctes, Lowered, Outer, UncarriedError
from millstream.sql.lowering.current_time import with_one_current_time
from millstream.sql.lowering.from_clause import renamed
from millstream.sql.lowering.group import with_known_aggregates
from millstream.sql.lowering.known_nodes import refuse_arguments
from millstream.sql.lowering.recursion import RecursiveCte, references, refuse_later_ones
from millstream.sql.lowering.select import Select
from millstream.sql.lowering.top_n import Limits, first_rows
from millstream.sql.parse import parse_query
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import describe_relation
from millstream.sql.sources import Analyzer, Sources

__all__ = ["Lowered", "lower"]


def lower(query: exp.Query, sql: str, sources: Sources, analyzer: Analyzer) -> Lowered:
    """Lower a parsed query.

    Raises:
        MillstreamError: the query is invalid, or cannot be maintained.
    """
    context = Context(sql, sources, analyzer)
    refuse_arguments(query, context)
    try:
        result = _Lowering(context).query(_readable(query), {})
    except UncarriedError as error:
        what = "a subquery that refers to the outer query in this place"
        raise unsupported(what, query, sql, "write it as a join") from error
    if not any(isinstance(node, Scan) for node in walk(result.relation)):
        raise unsupported("a query that reads no table", query, sql)
    notices, open_results = (tuple(dict.fromkeys(found)) for found in (context.notices, context.open_results))
    return Lowered(result.relation, result.names, notices, open_results=open_results, made_names=context.made_names)


@dataclass(frozen=True)
class _Lowering:
    context: Context

    def view(self, text: str) -> Lowered:
        inside, query = self.context.inside_view(text), parse_query(text)
        refuse_arguments(query, inside)
        return _Lowering(inside).query(_readable(query), {})

    def query(self, node: exp.Expr, ctes: Ctes, outer: Outer | None = None) -> Lowered:
        if isinstance(node, exp.Query):
            ctes = self._with(node, ctes)
        match node:
            case exp.Subquery():
                return self._limited(node, self.query(node.this, ctes, _strict(outer, node)), outer)
            case exp.Select():
                return Select(self, ctes, node, outer).lowered()
            case exp.Union():
                return self._limited(node, self._union(node, ctes, outer), outer)
            case exp.Intersect() | exp.Except():
                return self._limited(node, self._intersect_or_except(node, ctes, outer), outer)
        raise unsupported(type(node).__name__.upper(), node, self.context.sql)

    def _with(self, node: exp.Query, ctes: Ctes) -> Ctes:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        if with_.args.get("recursive"):
            refuse_later_ones(with_, self.context)
        defined: dict[str, Lowered] = {}
        for cte in with_.expressions:
            if cte.alias.lower() in defined:
                raise invalid(
                    f"two common table expressions are called {cte.alias}", cte.args["alias"], self.context.sql
                )
            if with_.args.get("recursive") and any(references(cte.this, cte.alias)):
                defined[cte.alias.lower()] = RecursiveCte(self, {**ctes, **defined}, cte).lowered()
                continue
            lowered = self.query(cte.this, {**ctes, **defined})
            names = [c.name for c in cte.args["alias"].columns]
            defined[cte.alias.lower()] = renamed(lowered, names, cte.args["alias"], self.context)
        return {**ctes, **defined}

    # ORDER BY and LIMIT of anything but a SELECT

    def _limited(self, node: exp.Query, lowered: Lowered, outer: Outer | None) -> Lowered:
        """The first rows in an order of output columns."""
        limits = Limits.of(node, self.context)
        if limits is None:
            return lowered
        if outer is not None:
            _require_carried(outer, lowered)
        known = {v.name.lower(): v.column.name for v in lowered.visible}
        by: list[exp.Ordered] = []
        for ordered in limits.order:
            key, name = ordered.this, None
            if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(lowered.names):
                name = lowered.outputs[int(key.name) - 1].name
            elif isinstance(key, exp.Column) and not key.table:
                name = known.get(key.name.lower())
            if name is None:
                raise invalid("this ORDER BY may only name output columns", ordered, self.context.sql)
            by.append(exp.Ordered(**{**ordered.args, "this": col(name)}))
        partition = [c.name for c in lowered.keys]
        first = first_rows(lowered.relation, partition, by, limits, self.context)
        relation = Project(first, keep(lowered.relation.schema))
        return Lowered(relation, lowered.names, (), lowered.conditions, None, limits.count == 1)

    # Set operations

    def _union(self, node: exp.Union, ctes: Ctes, outer: Outer | None) -> Lowered:
        branches, names, conditions = self._branches(node, ctes, outer)
        relation: Relation = UnionAll(branches)
        if node.args.get("distinct"):
            relation = _distinct(relation)
        return Lowered(relation, names, conditions=conditions)

    def _intersect_or_except(self, node: exp.SetOperation, ctes: Ctes, outer: Outer | None) -> Lowered:
        """The rows of the first branch with, or without, an equal row in the second; NULLs are equal here."""
        (left, right), names, conditions = self._branches(node, ctes, outer)
        if not node.args.get("distinct"):
            relation = self._as_often(left, right, is_intersection=isinstance(node, exp.Intersect))
            return Lowered(relation, names, conditions=conditions)
        pairs = zip(left.columns, right.columns, strict=True)
        equal = all_of(same(col(x.name), col(y.name)) for x, y in pairs)
        join = SemiJoin if isinstance(node, exp.Intersect) else AntiJoin
        return Lowered(_distinct(join(left, right, equal)), names, conditions=conditions)

    def _as_often(self, left: Relation, right: Relation, *, is_intersection: bool) -> Relation:
        """INTERSECT ALL and EXCEPT ALL: each row is counted on both sides, and repeated as often as it remains."""
        fresh = self.context.namer.fresh
        sides = Column(fresh("lefts"), "bigint"), Column(fresh("rights"), "bigint")
        counted = [
            Project(side, (*keep(side.columns), *(Item(cast(n, "bigint"), c) for n, c in zip(ns, sides, strict=True))))
            for side, ns in ((left, (ONE, ZERO)), (right, (ZERO, ONE)))
        ]
        sums = tuple(Item(total(col(c.name)), Column(fresh(c.name), "bigint")) for c in sides)
        grouped = Aggregate(UnionAll(tuple(counted)), keep(left.columns), sums)
        lefts, rights = (col(i.column.name) for i in sums)
        if is_intersection:
            times: exp.Expr = exp.Least(this=lefts, expressions=[rights])
        else:
            times = subtract(lefts, rights)
        count = Column(fresh("times"), "bigint")
        kept = Project(grouped, (*keep(left.columns), Item(times, count)))
        positive = Filter(kept, compare(exp.GT, col(count.name), ZERO))
        repeated = Repeat(positive, col(count.name), Column(fresh("number"), "bigint"))
        return Project(repeated, keep(left.columns))

    def _branches(
        self, node: exp.SetOperation, ctes: Ctes, outer: Outer | None
    ) -> tuple[tuple[Relation, Relation], tuple[str, ...], tuple[exp.Expr, ...]]:
        """The two sides in their common types, the column names, and the conditions on the outer query."""
        word = type(node).__name__.upper()
        if node.args.get("by_name"):
            what = f"{word} BY NAME" if node.args.get("distinct") else f"{word} ALL BY NAME"
            raise unsupported(what, node, self.context.sql, "name the columns of each branch in order")
        inner = replace(outer, takes_empty=False) if outer is not None else None
        left, right = self.query(node.this, ctes, inner), self.query(node.expression, ctes, inner)
        if len(left.names) != len(right.names):
            message = f"the branches of {_article(word)} differ in their number of columns"
            raise invalid(message, node.expression, self.context.sql)
        if outer is not None:
            _require_carried(outer, left, right)
        if outer is not None and outer.carried:
            right = self._renamed_ties(right)
        united = UnionAll((left.relation, right.relation))
        types = [c.type for c in describe_relation(self.context.analyzer, united)]
        branches = self._cast(left.relation, types), self._cast(right.relation, types)
        return branches, left.names, left.conditions

    def _renamed_ties(self, lowered: Lowered) -> Lowered:
        """The second branch with new names for the columns that both branches carry."""
        names = len(lowered.names)
        items = [Item(col(c.name), c) for c in lowered.relation.schema[:names]]
        fresh = self.context.namer.fresh
        items += [Item(col(c.name), Column(fresh(c.name), c.type)) for c in lowered.relation.schema[names:]]
        return Lowered(Project(lowered.relation, tuple(items)), lowered.names)

    def _cast(self, relation: Relation, types: list[str]) -> Relation:
        """Cast the columns of a union's branch to the union's types."""
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


def _readable(query: exp.Query) -> exp.Query:
    """The query with one name for functions that have several."""
    return with_one_current_time(with_known_aggregates(query))


def _strict(outer: Outer | None, node: exp.Query) -> Outer | None:
    """The outer query, as seen by a query with LIMIT or OFFSET: aggregates over no rows must produce a row."""
    limited = node.args.get("limit") or node.args.get("offset")
    return replace(outer, takes_empty=False) if outer is not None and limited else outer


def _require_carried(outer: Outer, *branches: Lowered) -> None:
    """If rows are compared with each other or counted, each must carry the outer row it belongs to."""
    if not outer.carried and any(branch.conditions for branch in branches):
        own = {c.name for branch in branches for c in branch.relation.columns}
        raise UncarriedError(n for branch in branches for c in branch.conditions for n in referenced(c) - own)


def _article(word: str) -> str:
    return f"a {word}" if word == "UNION" else f"an {word}"


def _distinct(relation: Relation) -> Relation:
    return Aggregate(relation, keep(relation.schema), ())
