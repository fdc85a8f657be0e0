"""Operators to SQL, as a sqlglot tree that any dialect can print.

Filters, renamings and one join are folded into the SELECT above them; each further join, aggregation or computed column
is a separate SELECT. Joins are written as nested binary joins. If the first input is small, the intermediate result has
a BROADCAST hint at every level, and so has a small right input: Catalyst multiplies size estimates through joins, so
that without the hint the second join of a hundred-row delta is already planned as a shuffle of the large table.

The tree is built from copies of the relations' expressions, and only here: a tree's own nodes are never shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from millstream import naming
from millstream.ops.expressions import ONE, all_of, cast, col, compare, multiply, wrapped
from millstream.ops.groups import Aggregate, Window
from millstream.ops.join_order import connected_order
from millstream.ops.joins import AntiJoin, InnerJoin, OuterJoin, SemiJoin
from millstream.ops.leaves import OneRow, Scan, Table
from millstream.ops.operator import Column, Item, Opaque, referenced
from millstream.ops.relations import Relation
from millstream.ops.rowwise import Filter, Project, Repeat
from millstream.ops.unions import Recursion, UnionAll
from millstream.ops.walk import walk

LEFT, RIGHT = "l", "r"
_PROBED = "probed"

_Names = Mapping[str, exp.Expr]
"""The expression for each column of a relation within a SELECT."""


def to_sql(
    query: exp.Query, dialect: str = "spark", *, pretty: bool = False, hints: bool = True, tiny: Set[str] = frozenset()
) -> str:
    """Print a query; hints are for Spark only, and omitted on request.

    Args:
        tiny: tables that are small enough to be sent to the tasks instead of the join's small side: a chain of joins
            whose small side is sent waits for one Spark job after the other.
    """
    for select in query.find_all(exp.Select) if tiny else ():
        hint = select.args.get("hint")
        if hint is not None and (tables := hint.meta.get(_PROBED)) and tables <= tiny:
            select.set("hint", _broadcast(RIGHT))
    if not (hints and dialect == "spark") and query.find(exp.Hint):
        query = query.copy()
        for select in query.find_all(exp.Select):
            select.set("hint", None)
    return query.sql(dialect=dialect, pretty=pretty, comments=False)


def render(relation: Relation) -> exp.Query:
    """The query that computes the relation, with its columns in the order of its schema."""
    match relation:
        case UnionAll():
            return _union_all(relation)
        case Aggregate():
            return _aggregate(relation)
        case Project():
            return _body(relation.input).select(relation.items)
        case Window():
            calls = (Item(cast(i.expression, i.column.type), i.column) for i in relation.calls)
            return _body(relation.input).select((*_kept(relation.input.schema), *calls))
        case Repeat():
            return _repeat(relation)
        case Scan() | Table() | OneRow() | Filter() | InnerJoin() | OuterJoin() | SemiJoin() | AntiJoin():
            return _body(relation).select(_kept(relation.schema))
        case Recursion():
            raise TypeError("a recursion is not a SELECT: `standalone` writes it as a common table expression")
    assert_never(relation)


def _kept(columns: Iterable[Column]) -> Iterable[Item]:
    return (Item(col(c.name), c) for c in columns)


@dataclass(frozen=True)
class _Body:
    """FROM, JOIN and WHERE of a SELECT."""

    source: exp.Expr
    names: _Names
    join: exp.Join | None = None
    where: tuple[exp.Expr, ...] = ()
    small: str | None = None
    """The side that is sent to every task ..."""
    probed: frozenset[str] = frozenset()
    """... and the tables of the other one."""

    def select(self, items: Iterable[Item]) -> exp.Select:
        """The SELECT of some items over this."""
        query = exp.Select(expressions=[self._named(item) for item in items], from_=exp.From(this=self.source))
        if self.join is not None:
            query.set("joins", [self.join])
        if self.where:
            query.set("where", exp.Where(this=all_of(self.where)))
        if self.small is not None:
            query.set("hint", _broadcast(self.small, self.probed))
        return query

    def _named(self, item: Item) -> exp.Expr:
        expression = _within(item.expression, self.names)
        if isinstance(expression, exp.Column) and expression.name == item.column.name:
            return expression
        return exp.Alias(this=expression, alias=exp.to_identifier(item.column.name, quoted=True))


def _body(relation: Relation) -> _Body:
    """The relation as FROM, JOIN and WHERE, into which filters, renamings and one join are folded."""
    match relation:
        case Filter():
            inner = _body(relation.input)
            return dataclasses.replace(inner, where=(*inner.where, _within(relation.predicate, inner.names)))
        case Project() if all(_is_trivial(item.expression) for item in relation.items):
            inner = _body(relation.input)
            names = {item.column.name: _within(item.expression, inner.names) for item in relation.items}
            return dataclasses.replace(inner, names=names)
        case InnerJoin():
            return _inner_join(relation)
        case OuterJoin():
            return _binary_join(relation, side=relation.kind.upper())
        case SemiJoin():
            return _binary_join(relation, side="LEFT", kind="SEMI")
        case AntiJoin():
            return _binary_join(relation, side="LEFT", kind="ANTI")
        case Project() | Aggregate() | UnionAll() | Opaque():
            return _Body(*_source(relation, LEFT))
    assert_never(relation)


def _source(relation: Relation, alias: str) -> tuple[exp.Expr, _Names]:
    """The relation as a FROM item, and the expressions for its columns there."""
    match relation:
        case Table():
            return _table(relation.name, alias), {c.name: col(c.name, alias) for c in relation.schema}
        case Scan():
            named = zip(relation.output, relation.origin, strict=True)
            return _table(relation.source, alias), {c.name: col(origin, alias) for c, origin in named}
        case OneRow():
            (column,) = relation.schema
            row = exp.Select(expressions=[exp.alias_(exp.Literal.number(1), column.name, quoted=True)])
            return exp.Subquery(this=row, alias=_alias(alias)), {column.name: col(column.name, alias)}
        case Project() if isinstance(relation.input, Table | Scan) and all(
            _is_trivial(item.expression) for item in relation.items
        ):
            source, names = _source(relation.input, alias)
            return source, {item.column.name: _within(item.expression, names) for item in relation.items}
        case (
            Filter()
            | InnerJoin()
            | OuterJoin()
            | SemiJoin()
            | AntiJoin()
            | Project()
            | Aggregate()
            | UnionAll()
            | Opaque()
        ):
            subquery = exp.Subquery(this=render(relation), alias=_alias(alias))
            return subquery, {c.name: col(c.name, alias) for c in relation.schema}
    assert_never(relation)


def _union_all(relation: UnionAll) -> exp.Query:
    first, *others = (_weight_last(i) for i in relation.inputs)
    query = first
    for other in others:
        query = exp.Union(this=query, expression=other, distinct=False)
    return query


def _weight_last(relation: Relation) -> exp.Query:
    """A branch of a union, which matches columns by position."""
    names = [c.name for c in relation.columns] + ([naming.WEIGHT] if relation.is_weighted else [])
    if [c.name for c in relation.schema] == names:
        return render(relation)
    types = {c.name: c for c in relation.schema}
    return _body(relation).select(Item(col(n), types[n]) for n in names)


def _aggregate(relation: Aggregate) -> exp.Query:
    body = _body(relation.input)
    keys = [_within(item.expression, body.names) for item in relation.keys]
    if not all(isinstance(key, exp.Column) for key in keys):
        # a key that is a number would be read as a position in the SELECT list
        body = _Body(*_source(relation.input, LEFT))
        keys = [_within(item.expression, body.names) for item in relation.keys]
    query = body.select((*relation.keys, *relation.calls))
    if keys:
        query.set("group", exp.Group(expressions=keys))
    return query


def _repeat(relation: Repeat) -> exp.Query:
    """With a generator in the SELECT list; `SEQUENCE(1, 0)` would count down, so rows with a count below 1 go first."""
    body = _body(relation.input)
    count = cast(relation.count, relation.number.type)
    numbers = exp.Explode(this=exp.GenerateSeries(start=cast(ONE, relation.number.type), end=count))
    positive = _within(compare(exp.GTE, relation.count, ONE), body.names)
    body = dataclasses.replace(body, where=(*body.where, positive))
    names = [Item(numbers, c) if c == relation.number else Item(col(c.name), c) for c in relation.schema]
    return body.select(names)


# Joins


def _binary_join(relation: OuterJoin | SemiJoin | AntiJoin, *, side: str, kind: str = "") -> _Body:
    source, left_names = _source(relation.left, LEFT)
    joined, right_names = _source(relation.right, RIGHT)
    names = {**right_names, **left_names}
    join = exp.Join(this=joined, side=side, kind=kind or None, on=_within(relation.condition, names))
    return _Body(source, names, join, small=RIGHT if relation.small_right else None)


def _inner_join(relation: InnerJoin) -> _Body:
    first, *others = relation.inputs
    if not relation.small_first:
        # a query may list its tables in any order, in which two of them could form a cross product
        others = connected_order(first, others, relation.conditions)[1:]
    left, left_names = _source(first, LEFT)
    pending = list(relation.conditions)
    for position, right in enumerate(others, start=2):
        joined, right_names = _source(right, RIGHT)
        names = {**left_names, **right_names}
        if naming.WEIGHT in left_names and naming.WEIGHT in right_names:
            names[naming.WEIGHT] = multiply(left_names[naming.WEIGHT], right_names[naming.WEIGHT])
        on = [_within(c, names) for c in pending if referenced(c) <= names.keys()]
        pending = [c for c in pending if not referenced(c) <= names.keys()]
        join = exp.Join(this=joined, on=all_of(on)) if on else exp.Join(this=joined, kind="CROSS")
        body = _Body(left, names, join, small=LEFT if relation.small_first else None, probed=_tables(right))
        if position < len(relation.inputs):
            left = exp.Subquery(this=body.select(_all(names, relation)), alias=_alias(LEFT))
            left_names = {name: col(name, LEFT) for name in names}
    return body


def _all(names: _Names, relation: Relation) -> Iterable[Item]:
    """The columns of a join that its inputs so far have."""
    return (Item(col(c.name), c) for c in relation.schema if c.name in names)


def _tables(relation: Relation) -> frozenset[str]:
    return frozenset(node.name for node in walk(relation) if isinstance(node, Table))


def _broadcast(side: str, probed: frozenset[str] = frozenset()) -> exp.Hint:
    hint = exp.Hint(expressions=[exp.func("BROADCAST", exp.to_identifier(side))])
    if probed:
        hint.meta[_PROBED] = probed
    return hint


# Names


def _table(name: str, alias: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(name, quoted=True), alias=_alias(alias))


def _alias(alias: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(alias, quoted=True))


def _within(expression: exp.Expr, names: _Names) -> exp.Expr:
    """A copy of the expression in which columns have their names within the SELECT."""
    if isinstance(expression, exp.Column):
        return _copy(names[expression.name])

    def rename(node: exp.Expr) -> exp.Expr:
        return wrapped(_copy(names[node.name])) if isinstance(node, exp.Column) else node

    return expression.transform(rename)


def _copy(expression: exp.Expr) -> exp.Expr:
    # most are columns, for which the general copy takes ten times as long
    return col(expression.name, expression.table) if isinstance(expression, exp.Column) else expression.copy()


def _is_trivial(expression: exp.Expr) -> bool:
    """Whether an expression may be repeated wherever its column is used: a column, its negative, a constant."""
    if isinstance(expression, exp.Cast | exp.Neg):
        expression = expression.this
    return isinstance(expression, exp.Column | exp.Literal | exp.Null | exp.Boolean)
