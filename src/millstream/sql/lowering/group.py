"""GROUP BY, aggregate functions and HAVING: to a projection, an Aggregate, and expressions over its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.ops import Aggregate, Column, Item, Project, Relation
from millstream.ops.expressions import ZERO, cast, col, keep, null, wrapped
from millstream.sql.lowering.aggregates import PARTS, build, lower_aggregation, take_apart
from millstream.sql.lowering.aggregates.calls import Shape
from millstream.sql.lowering.context import Context
from millstream.sql.lowering.grouping_sets import KeySets
from millstream.sql.lowering.scope import Scope
from millstream.sql.refusals.unsupported import invalid
from millstream.sql.result_types import avg_type, describe_relation, sum_type, typed
from millstream.sql.window_calls import map_parts, scalar_parts

# Spark's names for aggregates that are known here under another name.
_SYNONYMS = {"MEAN": exp.Avg, "STD": exp.Stddev, "EVERY": exp.LogicalAnd, "SOME": exp.LogicalOr}


def with_known_aggregates(query: exp.Query) -> exp.Query:
    """The query with one name for each aggregate; ANY(x) is an aggregate where it is not part of a comparison."""

    def replace(node: exp.Expr) -> exp.Expr:
        found: exp.Expr | None = None
        if isinstance(node, exp.AnonymousAggFunc) and len(node.expressions) == 1:
            known = _SYNONYMS.get(str(node.this))
            found = known(this=node.expressions[0]) if known is not None else None
        elif isinstance(node, exp.Any) and not isinstance(node.parent, exp.Binary | exp.Predicate):
            found = exp.LogicalOr(this=node.this.unnest()) if not node.find(exp.Query) else None
        if found is None:
            return node
        found.meta.update(node.meta)
        return found

    result = query.transform(replace)
    assert isinstance(result, exp.Query)
    return result


def aggregates_in(expression: exp.Expr) -> Iterator[exp.AggFunc]:
    """The calls that make a SELECT a grouped one: not window calls, but aggregates in their arguments."""
    if isinstance(expression, exp.Window):
        for part in scalar_parts(expression):
            yield from aggregates_in(part)
    elif isinstance(expression, exp.AggFunc):
        yield expression
    elif not isinstance(expression, exp.Query):
        for child in expression.iter_expressions():
            yield from aggregates_in(child)


def calls_in(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The same calls, each with its FILTER."""
    for call in aggregates_in(expression):
        yield call.parent if isinstance(call.parent, exp.Filter) else call


def value_of_no_rows(call: Item) -> exp.Expr:
    """The value of an aggregate over no rows."""
    function = call.expression.this if isinstance(call.expression, exp.Filter) else call.expression
    if isinstance(function, exp.Count):
        return cast(ZERO, call.column.type)
    if call.expression.find(exp.ArrayAgg, exp.ArrayUniqueAgg):
        return cast(exp.Array(expressions=[]), call.column.type)
    return null(call.column.type)


@dataclass
class Grouping:
    """Collects the keys, arguments and calls of one grouped SELECT while its expressions are rewritten.

    All expressions passed in are already bound: they refer to the columns of `input`.
    """

    input: Relation
    scope: Scope
    context: Context
    keys: list[tuple[exp.Expr, str]] = field(default_factory=list)
    arguments: list[tuple[exp.Expr, str]] = field(default_factory=list)
    calls: list[tuple[exp.Expr, str]] = field(default_factory=list)
    sets: KeySets | None = None

    def add_key(self, expression: exp.Expr) -> None:
        """Group by an expression as well."""
        expression = expression.unnest()
        if not self.has_key(expression):
            wanted = expression.name if isinstance(expression, exp.Column) else f"key{len(self.keys) + 1}"
            self.keys.append((expression, self.context.namer.fresh(wanted)))

    def set_sets(self, sets: Sequence[Sequence[exp.Expr]]) -> None:
        """Group by several sets of the keys so far instead of by all of them."""
        names = tuple(frozenset(self._key_name(key) for key in keys) for keys in sets)
        number = Column(self.context.namer.fresh("grouping_set"), "int")
        self.sets = KeySets(number, tuple(name for _, name in self.keys), names)

    def has_key(self, expression: exp.Expr) -> bool:
        """Whether an expression has one value per group."""
        return any(expression == known for known, _ in self.keys)

    def rewrite(self, expression: exp.Expr) -> exp.Expr:
        """Express a SELECT item or the HAVING predicate over keys and calls."""

        def replace(node: exp.Expr) -> exp.Expr:
            for key, name in self.keys:
                if node == key:
                    return col(name)
            if isinstance(node, exp.Window):
                return map_parts(node, self.rewrite)
            if isinstance(node, exp.Grouping | exp.GroupingId):
                return self._grouping(node)
            if isinstance(node, PARTS) and (aggregation := take_apart(node)) is not None:
                return wrapped(lower_aggregation(aggregation, self))
            if isinstance(node, exp.Column):
                name = self.scope.name_of(node.name)
                hint = "group by it, or aggregate it"
                raise invalid(f"the column {name} is neither grouped nor aggregated", node, self.context.sql, hint)
            return node

        # top-down: a key that contains what looks like an aggregate, or a call with its FILTER, must match as a whole
        return expression.transform(replace)

    def build(self) -> Aggregate:
        """The Aggregate over a projection that computes keys and arguments once."""
        computed = (*self.keys, *self.arguments)
        types = typed(self.context.analyzer, self.input, [e for e, _ in computed])
        items = tuple(Item(e, Column(n, t.type)) for (e, n), t in zip(computed, types, strict=True))
        keys = keep(item.column for item in items[: len(self.keys)])
        if self.sets is None:
            prepared = Project(self.input, items) if items else self.input
            return Aggregate(prepared, keys, self._typed_calls(prepared, keys))
        prepared = self.sets.masked(self.input, items)
        keys = (*keys, *keep([self.sets.number]))
        return Aggregate(prepared, keys, self._typed_calls(prepared, keys))

    def _grouping(self, node: exp.Grouping | exp.GroupingId) -> exp.Expr:
        """GROUPING and GROUPING_ID: functions of the number of the set."""
        if self.sets is None:
            hint = "use it with GROUPING SETS, CUBE or ROLLUP"
            raise invalid(f"{node.sql_name()} is only allowed with several sets of keys", node, self.context.sql, hint)
        names = [self._key_name(e) for e in (node.args.get("this"), *node.expressions) if e is not None]
        return self.sets.grouping(names[0]) if isinstance(node, exp.Grouping) else self.sets.grouping_id(names)

    def _key_name(self, expression: exp.Expr) -> str:
        for key, name in self.keys:
            if key == expression.unnest():
                return name
        raise invalid("this is not a grouping key", expression, self.context.sql)

    # What the families of aggregates need

    def type_of(self, expression: exp.Expr) -> str:
        """The type of an expression over the input."""
        return typed(self.context.analyzer, self.input, [expression])[0].type

    def call(
        self,
        name: str,
        *arguments: exp.Expr,
        condition: exp.Expr | None = None,
        distinct: bool = False,
        order: Sequence[exp.Ordered] = (),
        shape: Shape | None = None,
    ) -> exp.Expr:
        """The column of a call, made once for equal calls."""
        columns: list[exp.Expr] = []
        for position, argument in enumerate(arguments):
            # the value is a column, even a constant one; but in PERCENTILE_CONT(0.5) WITHIN GROUP the value comes last
            is_constant = not argument.find(exp.Column) and (position > 0 or bool(order))
            columns.append(argument if is_constant or isinstance(argument, exp.Star) else self._argument(argument))
        call: exp.Expr = build(name, columns, distinct=distinct)
        if order:
            keys = [self._ordered(o) for o in order]
            call = exp.WithinGroup(this=call, expression=exp.Order(expressions=keys))
        if condition is not None:
            call = exp.Filter(this=call, expression=exp.Where(this=self._argument(condition)))
        if shape is not None:
            call = shape(call)
        for known, column in self.calls:
            if known == call:
                return col(column)
        column = self.context.namer.fresh(name.lower().split("_")[0])
        self.calls.append((call, column))
        return col(column)

    def _ordered(self, ordered: exp.Ordered) -> exp.Ordered:
        found = ordered.copy()
        found.set("this", self._argument(ordered.this))
        return found

    def _argument(self, expression: exp.Expr) -> exp.Expr:
        """A column that holds the argument; literals stay, so that COUNT(1) needs none."""
        expression = expression.unnest()
        if isinstance(expression, exp.Literal):
            return expression
        # a key that is masked in some groups cannot serve as an argument, which is never masked
        for known, name in (*(self.keys if self.sets is None else ()), *self.arguments):
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
    if isinstance(function, exp.Count):
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
