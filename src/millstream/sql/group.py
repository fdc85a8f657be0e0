"""GROUP BY, aggregate functions and HAVING: to a projection, an Aggregate, and expressions over its columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.ops import Aggregate, Column, Item, Project, Relation
from millstream.ops.expressions import ZERO, cast, col, keep, null
from millstream.sql.clauses import misplaced_aggregate
from millstream.sql.closing import closed
from millstream.sql.context import Context
from millstream.sql.parse import place_of
from millstream.sql.scope import Scope
from millstream.sql.typing import avg_type, describe_relation, sum_type, typed
from millstream.sql.unsupported import invalid, unsupported
from millstream.sql.window_calls import map_parts, scalar_parts

# Aggregates whose result does not depend on the order of the rows. Others (FIRST, COLLECT_LIST, ...) have an open
# result, which needs an order fixed by us.
ORDER_FREE: tuple[type[exp.Expr], ...] = (
    exp.Count,
    exp.Sum,
    exp.Avg,
    exp.Min,
    exp.Max,
    exp.CountIf,
    exp.Stddev,
    exp.StddevPop,
    exp.StddevSamp,
    exp.Variance,
    exp.VariancePop,
    exp.Corr,
    exp.CovarPop,
    exp.CovarSamp,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.BitwiseAndAgg,
    exp.BitwiseOrAgg,
    exp.BitwiseXorAgg,
)

# Names of Spark's that the parser does not know.
_SYNONYMS = {"mean": exp.Avg, "std": exp.Stddev, "every": exp.LogicalAnd, "some": exp.LogicalOr}


def with_known_aggregates(query: exp.Query) -> exp.Query:
    """The query with aggregates under the names the parser knows."""

    def replace(node: exp.Expr) -> exp.Expr:
        known = _SYNONYMS.get(node.name.lower()) if isinstance(node, exp.Anonymous) else None
        if known is None or len(node.expressions) != 1:
            return node
        found = known(this=node.expressions[0])
        found.meta.update(node.meta)
        return found

    result = query.transform(replace)
    assert isinstance(result, exp.Query)
    return result


def aggregates_in(expression: exp.Expr) -> Iterator[exp.AggFunc]:
    """The calls that make a SELECT a grouped one: not those of windows, but in their arguments."""
    if isinstance(expression, exp.Window):
        for part in scalar_parts(expression):
            yield from aggregates_in(part)
    elif isinstance(expression, exp.AggFunc):
        yield expression
    elif not isinstance(expression, exp.Query):
        for child in expression.iter_expressions():
            yield from aggregates_in(child)


def value_of_no_rows(call: Item) -> exp.Expr:
    """What an aggregate gives for no rows at all."""
    function = call.expression.this if isinstance(call.expression, exp.Filter) else call.expression
    if isinstance(function, exp.Count | exp.CountIf | exp.RegrCount):
        return cast(ZERO, call.column.type)
    if isinstance(function, exp.ArrayAgg | exp.ArrayUniqueAgg):
        return cast(exp.Array(expressions=[]), call.column.type)
    return null(call.column.type)


@dataclass
class Grouping:
    """Collects the keys, arguments and calls of one grouped SELECT while its expressions are rewritten.

    All expressions handed in are bound already: they refer to the columns of `input`.
    """

    input: Relation
    scope: Scope
    context: Context
    keys: list[tuple[exp.Expr, str]] = field(default_factory=list)
    arguments: list[tuple[exp.Expr, str]] = field(default_factory=list)
    calls: list[tuple[exp.Expr, str]] = field(default_factory=list)

    def add_key(self, expression: exp.Expr) -> None:
        """Group by an expression as well."""
        expression = expression.unnest()
        if not self.has_key(expression):
            wanted = expression.name if isinstance(expression, exp.Column) else f"key{len(self.keys) + 1}"
            self.keys.append((expression, self.context.namer.fresh(wanted)))

    def has_key(self, expression: exp.Expr) -> bool:
        """Whether the groups have one value of an expression each."""
        return any(expression == known for known, _ in self.keys)

    def rewrite(self, expression: exp.Expr) -> exp.Expr:
        """Express a SELECT item or the HAVING predicate over keys and calls."""

        def replace(node: exp.Expr) -> exp.Expr:
            for key, name in self.keys:
                if node == key:
                    return col(name)
            if isinstance(node, exp.Window):
                return map_parts(node, self.rewrite)
            if isinstance(node, exp.Filter) and isinstance(node.this, exp.AggFunc):
                return col(self._call(node.this, node.expression.this))
            if isinstance(node, exp.AggFunc):
                return col(self._call(node, None))
            if isinstance(node, exp.Column):
                name = self.scope.name_of(node.name)
                hint = "group by it, or aggregate it"
                raise invalid(f"the column {name} is neither grouped nor aggregated", node, self.context.sql, hint)
            return node

        # top-down: a key that contains an aggregate's look-alike, or FILTER around a call, must match as a whole
        return expression.transform(replace)

    def build(self) -> Aggregate:
        """The Aggregate over a projection that computes keys and arguments once."""
        computed = (*self.keys, *self.arguments)
        types = typed(self.context.analyzer, self.input, [e for e, _ in computed])
        items = tuple(Item(e, Column(n, t.type)) for (e, n), t in zip(computed, types, strict=True))
        prepared = Project(self.input, items) if items else self.input
        keys = keep(item.column for item in items[: len(self.keys)])
        return Aggregate(prepared, keys, self._typed_calls(prepared, keys))

    def _call(self, function: exp.AggFunc, condition: exp.Expr | None) -> str:
        """The column of a call, made once for equal calls."""
        function = closed(function, self.context)
        if not isinstance(function, ORDER_FREE):
            place = place_of(function)
            name = self.context.sql[place["start"] : place["end"] + 1] if place else function.sql_name()
            raise unsupported(f"the aggregate {name}", function, self.context.sql)
        for part in (function, condition):
            if inner := next((n for n in part.find_all(exp.AggFunc) if n is not function), None) if part else None:
                raise misplaced_aggregate(inner, "inside another", self.context)
        call: exp.Expr = function.copy()
        this = call.this
        if isinstance(this, exp.Distinct):
            call.set("this", exp.Distinct(expressions=[self._argument(e) for e in this.expressions]))
        elif isinstance(this, exp.Expr) and not isinstance(this, exp.Star):
            call.set("this", self._argument(this))
        for key in ("expression", "expressions"):
            value = call.args.get(key)
            if isinstance(value, exp.Expr):
                call.set(key, self._argument(value))
            elif value:
                call.set(key, [self._argument(v) for v in value])
        if condition is not None:
            call = exp.Filter(this=call, expression=exp.Where(this=self._argument(condition)))
        for known, name in self.calls:
            if known == call:
                return name
        name = self.context.namer.fresh(function.sql_name().lower().split("_")[0])
        self.calls.append((call, name))
        return name

    def _argument(self, expression: exp.Expr) -> exp.Expr:
        """A column that holds the argument; literals stay, so that COUNT(1) needs none."""
        expression = expression.unnest()
        if isinstance(expression, exp.Literal):
            return expression
        for known, name in (*self.keys, *self.arguments):
            if known == expression:
                return col(name)
        wanted = expression.name if isinstance(expression, exp.Column) else f"arg{len(self.arguments) + 1}"
        name = self.context.namer.fresh(wanted)
        self.arguments.append((expression, name))
        return col(name)

    def _typed_calls(self, prepared: Relation, keys: tuple[Item, ...]) -> tuple[Item, ...]:
        types = {c.name: c.type for c in prepared.schema}
        found: dict[str, str] = {}
        for call, name in self.calls:
            known = _known_type(call, types)
            if known is not None:
                found[name] = known
        if len(found) < len(self.calls):
            untyped = tuple(Item(call, Column(name, "unknown")) for call, name in self.calls)
            described = describe_relation(self.context.analyzer, Aggregate(prepared, keys, untyped))
            found = {c.name: found.get(c.name, c.type) for c in described[len(keys) :]}
        return tuple(Item(call, Column(name, found[name])) for call, name in self.calls)


def _known_type(call: exp.Expr, types: dict[str, str]) -> str | None:
    function = call.this if isinstance(call, exp.Filter) else call
    if isinstance(function, exp.Count | exp.CountIf):
        return "bigint"
    argument = function.this
    if isinstance(argument, exp.Distinct) and len(argument.expressions) == 1:
        argument = argument.expressions[0]
    if not isinstance(argument, exp.Column):
        return None
    argument_type = types[argument.name]
    if isinstance(function, exp.Sum):
        return sum_type(argument_type)
    if isinstance(function, exp.Avg):
        return avg_type(argument_type)
    if isinstance(function, exp.Min | exp.Max):
        return argument_type
    return None
