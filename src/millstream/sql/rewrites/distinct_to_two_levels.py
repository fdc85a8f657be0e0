"""COUNT(DISTINCT x) as two aggregations: by the keys and x, then by the keys.

The lower one is stored in a hidden stage of (keys, x, number of rows), and the upper one counts its rows, so that the
cost of both depends on their changes. Without this rewrite, a touched group would have to be read again.

The other calls must decompose: a sum of sums, a minimum of minima. DISTINCT calls over different arguments stay as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Aggregate, Column, Item, Project, Relation, transform
from millstream.ops.expressions import ZERO, all_of, cast, coalesce, col, compare, is_not_null, when
from millstream.sql.result_types import decimal_parts, sum_type

# a sum of sums is exact up to here, see MAX_EXACT_PRECISION of the delta rules
_MOST_DIGITS = 27


def distinct_to_two_levels(relation: Relation) -> Relation:
    """The same result, with DISTINCT calls over one argument as plain calls over the groups of that argument."""
    return transform(relation, lambda node: _split(node) if isinstance(node, Aggregate) else node)


@dataclass(frozen=True)
class _Call:
    function: exp.Expr
    condition: exp.Expr | None
    column: Column

    @property
    def distinct(self) -> tuple[exp.Expr, ...]:
        """The arguments of DISTINCT; empty without it."""
        this = self.function.this
        return tuple(this.expressions) if isinstance(this, exp.Distinct) else ()


def _split(node: Aggregate) -> Relation:
    calls = [_taken(item) for item in node.calls]
    arguments = {call.distinct for call in calls if call.distinct}
    if len(arguments) != 1:
        return node
    values = arguments.pop()
    types = {c.name: c.type for c in node.input.schema}
    named = {i.expression.name: i.column for i in node.keys if isinstance(i.expression, exp.Column)}
    taken = {i.column.name for i in (*node.keys, *node.calls)}
    for value in values:
        if not isinstance(value, exp.Column) or (value.name not in named and value.name in taken):
            return node
        named.setdefault(value.name, Column(value.name, types[value.name]))
    keys = {i.column for i in node.keys}
    below = [Item(col(v.name), named[v.name]) for v in dict.fromkeys(values) if named[v.name] not in keys]
    partial: list[Item] = []
    above: list[Item] = []
    shown: list[Item] = [Item(col(i.column.name), i.column) for i in node.keys]
    for call in calls:
        levels = _of_distinct(call, named) if call.distinct else _of_all(call, types, taken)
        if levels is None:
            return node
        partial += levels[0]
        above += levels[1]
        shown.append(Item(levels[2], call.column))
    inner = Aggregate(node.input, (*node.keys, *below), tuple(partial))
    outer = Aggregate(inner, tuple(Item(col(i.column.name), i.column) for i in node.keys), tuple(above))
    return Project(outer, tuple(shown))


_Levels = tuple[list[Item], list[Item], exp.Expr]
"""The calls of the lower level, those of the upper level, and the result as an expression over the latter."""


def _of_distinct(call: _Call, named: dict[str, Column]) -> _Levels | None:
    if not isinstance(call.function, exp.Count | exp.Sum | exp.Avg):
        return None
    values = [col(named[v.name].name) for v in call.distinct]
    conditions = [is_not_null(v) for v in values] if len(values) > 1 else []
    below: list[Item] = []
    if call.condition is not None:
        # the values with at least one row that satisfies the FILTER
        rows = exp.Filter(this=exp.Count(this=exp.Star()), expression=exp.Where(this=call.condition))
        below.append(Item(rows, Column(call.column.name, "bigint")))
        conditions.append(compare(exp.GT, col(call.column.name), ZERO))
    function = type(call.function)(this=exp.Star() if len(values) > 1 else values[0])
    above: exp.Expr = function
    if conditions:
        above = exp.Filter(this=function, expression=exp.Where(this=all_of(conditions)))
    return below, [Item(above, call.column)], col(call.column.name)


def _of_all(call: _Call, types: dict[str, str], taken: set[str]) -> _Levels | None:
    function, column = call.function, call.column
    if isinstance(function, exp.Min | exp.Max):
        best = type(function)(this=col(column.name))
        return [Item(_filtered(function, call), column)], [Item(best, column)], col(column.name)
    if isinstance(function, exp.Count):
        below, above = _summed(_filtered(function, call), column)
        return [below], [above], coalesce(col(column.name), cast(ZERO, column.type))
    if not isinstance(function, exp.Sum | exp.Avg) or not isinstance(function.this, exp.Column):
        return None
    summed = sum_type(types[function.this.name])
    parts = decimal_parts(summed or "")
    if summed in {None, "double"} or (parts and parts[0] > _MOST_DIGITS):
        return None
    assert summed is not None
    below, above = _summed(_filtered(exp.Sum(this=function.this), call), Column(column.name, summed))
    total = cast(col(column.name), summed)
    if isinstance(function, exp.Sum):
        return [below], [above], total
    rows = Column(f"{column.name}_rows", "bigint")
    if rows.name in taken or rows.name in types:
        return None
    counted, counts = _summed(_filtered(exp.Count(this=function.this), call), rows)
    kinds = ("double", "double") if parts is None else (summed, "decimal(20,0)")  # as in Spark's own AVG
    quotient = exp.Div(this=cast(total, kinds[0]), expression=cast(col(rows.name), kinds[1]))
    average = when(compare(exp.GT, col(rows.name), ZERO), cast(quotient, column.type))
    return [below, counted], [above, counts], average


def _summed(partial: exp.Expr, column: Column) -> tuple[Item, Item]:
    """A call of the lower level, and its sum in the upper level."""
    return Item(partial, column), Item(exp.Sum(this=col(column.name)), Column(column.name, sum_type(column.type) or ""))


def _filtered(function: exp.Expr, call: _Call) -> exp.Expr:
    if call.condition is None:
        return function
    return exp.Filter(this=function, expression=exp.Where(this=call.condition))


def _taken(item: Item) -> _Call:
    if isinstance(item.expression, exp.Filter):
        return _Call(item.expression.this, item.expression.expression.this, item.column)
    return _Call(item.expression, None, item.column)
