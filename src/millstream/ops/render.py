"""Operators to SQL: one SELECT per relation, as a sqlglot tree that any dialect can print.

Joins are written as nested binary ones. Where the first input is small the running result carries a BROADCAST hint at
every level: Catalyst multiplies size estimates through joins, so that without the hint the second join of a
hundred-row delta is already planned as a shuffle of the large table.

The tree is built from copies of the relations' expressions, and only here: a tree's own nodes are never shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

from sqlglot import exp

from millstream import naming
from millstream.ops.expressions import all_of, col, multiply, weight
from millstream.ops.relations import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Relation,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
    referenced,
)

LEFT, RIGHT = "l", "r"


def to_sql(query: exp.Query, dialect: str = "spark", *, pretty: bool = False, hints: bool = True) -> str:
    """Print a query; hints are Spark's only, and left out on request."""
    if not (hints and dialect == "spark") and query.find(exp.Hint):
        query = query.transform(lambda node: None if isinstance(node, exp.Hint) else node)
    return query.sql(dialect=dialect, pretty=pretty, comments=False)


@singledispatch
def render(relation: Relation) -> exp.Query:
    """The query that computes the relation, with its columns in the order of its schema."""
    raise TypeError(f"no rendering for {type(relation).__name__}")


@render.register
def _(relation: Scan) -> exp.Query:
    named = zip(relation.origin, relation.output, strict=True)
    return _select([_named(col(origin), column.name) for origin, column in named], _table(relation.source))


@render.register
def _(relation: Table) -> exp.Query:
    return _select(_columns(relation.output), _table(relation.name))


@render.register
def _(relation: Filter) -> exp.Query:
    return _select(_columns(relation.schema), _from(relation.input), where=relation.predicate)


@render.register
def _(relation: Project) -> exp.Query:
    items = [_aliased(item) for item in relation.items]
    if isinstance(relation.input, Filter):
        return _select(items, _from(relation.input.input), where=relation.input.predicate)
    return _select(items, _from(relation.input))


@render.register
def _(relation: UnionAll) -> exp.Query:
    first, *others = relation.inputs
    query: exp.Query = _weight_last(first)
    for other in others:
        query = exp.Union(this=query, expression=_weight_last(other), distinct=False)
    return query


@render.register
def _(relation: Aggregate) -> exp.Query:
    query = _select([_aliased(item) for item in (*relation.keys, *relation.calls)], _from(relation.input))
    if relation.keys:
        query.set("group", exp.Group(expressions=[item.expression.copy() for item in relation.keys]))
    return query


@render.register
def _(relation: SemiJoin) -> exp.Query:
    return _filtering_join(relation, "SEMI")


@render.register
def _(relation: AntiJoin) -> exp.Query:
    return _filtering_join(relation, "ANTI")


@render.register
def _(relation: OuterJoin) -> exp.Query:
    left, right = relation.left, relation.right
    items = [*_columns(left.columns, LEFT), *_columns(right.columns, RIGHT)]
    if left.is_weighted:
        items.append(weight(LEFT))
    on = _qualified(relation.condition, left.columns)
    return _select(items, _from(left), exp.Join(this=_from(right, RIGHT), side=relation.kind.upper(), on=on))


@render.register
def _(relation: InnerJoin) -> exp.Query:
    running = _from(relation.inputs[0])
    query = None
    for position in range(1, len(relation.inputs)):
        query = _binary_join(relation, position, running)
        running = exp.Subquery(this=query, alias=_table_alias(LEFT))
    assert query is not None
    return query


def _binary_join(relation: InnerJoin, position: int, left: exp.Expression) -> exp.Select:
    """Join the inputs before `position`, already rendered as `left`, with the one there."""
    before, right = relation.inputs[:position], relation.inputs[position]
    left_columns = [c for i in before for c in i.columns]
    items: list[exp.Expression] = [*_columns(left_columns, LEFT), *_columns(right.columns, RIGHT)]
    weights = [weight(LEFT)] if any(i.is_weighted for i in before) else []
    weights += [weight(RIGHT)] if right.is_weighted else []
    if weights:
        items.append(_named(weights[0] if len(weights) == 1 else multiply(*weights), naming.WEIGHT))
    on = [_qualified(c, left_columns) for c in _ready(relation, position)]
    join = exp.Join(this=_from(right, RIGHT), on=all_of(on)) if on else exp.Join(this=_from(right, RIGHT), kind="CROSS")
    query = _select(items, left, join)
    if relation.small_first:
        query.set("hint", exp.Hint(expressions=[exp.func("BROADCAST", exp.to_identifier(LEFT))]))
    return query


def _ready(relation: InnerJoin, position: int) -> list[exp.Expression]:
    """The conditions that can be checked once the input at `position` is joined, and could not before."""

    def first_usable(condition: exp.Expression) -> int:
        missing = referenced(condition)
        for place, joined in enumerate(relation.inputs):
            missing -= {c.name for c in joined.columns}
            if not missing:
                return max(1, place)
        raise ValueError(f"the condition {condition} refers to no input")

    return [c for c in relation.conditions if first_usable(c) == position]


def _filtering_join(relation: SemiJoin | AntiJoin, kind: str) -> exp.Query:
    left, right = relation.left, relation.right
    on = _qualified(relation.condition, left.schema)
    join = exp.Join(this=_from(right, RIGHT), side="LEFT", kind=kind, on=on)
    return _select(_columns(left.schema, LEFT), _from(left), join)


# Pieces of a SELECT


def _select(
    items: Sequence[exp.Expression],
    source: exp.Expression,
    join: exp.Join | None = None,
    *,
    where: exp.Expression | None = None,
) -> exp.Select:
    query = exp.Select(expressions=list(items), from_=exp.From(this=source))
    if join is not None:
        query.set("joins", [join])
    if where is not None:
        query.set("where", exp.Where(this=where.copy()))
    return query


def _from(relation: Relation, alias: str = LEFT) -> exp.Expression:
    """The relation as a FROM item."""
    if isinstance(relation, Table):
        table = _table(relation.name)
        table.set("alias", _table_alias(alias))
        return table
    return exp.Subquery(this=render(relation), alias=_table_alias(alias))


def _table(name: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def _table_alias(alias: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(alias, quoted=True))


def _columns(columns: Iterable[Column], table: str | None = None) -> list[exp.Expression]:
    return [col(c.name, table) for c in columns]


def _weight_last(relation: Relation) -> exp.Query:
    """The branch of a union, which matches columns by position."""
    names = [c.name for c in relation.columns] + ([naming.WEIGHT] if relation.is_weighted else [])
    if [c.name for c in relation.schema] == names:
        return render(relation)
    return _select([col(n) for n in names], _from(relation))


def _named(expression: exp.Expression, name: str) -> exp.Alias:
    return exp.Alias(this=expression, alias=exp.to_identifier(name, quoted=True))


def _aliased(item: Item) -> exp.Expression:
    expression = item.expression.copy()
    if isinstance(expression, exp.Column) and not expression.table and expression.name == item.column.name:
        return expression
    return _named(expression, item.column.name)


def _qualified(condition: exp.Expression, left: Iterable[Column]) -> exp.Expression:
    """The condition with each column ascribed to its side; what the left side does not have is the right side's."""
    names = {c.name for c in left}

    def qualify(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and not node.table:
            return col(node.name, LEFT if node.name in names else RIGHT)
        return node

    return condition.transform(qualify)
