"""Window functions: moved out of their expressions, into Window operators below them.

Calls with the same PARTITION BY share one operator; each further PARTITION BY adds an operator on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.ops import Column, Item, Project, Relation, Window
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import add_columns, col
from millstream.sql.lowering.aggregates.aggregation import name_of
from millstream.sql.lowering.context import Context
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import avg_type, sum_type, typed
from millstream.sql.window_calls import function_of, map_parts, order_of, scalar_parts

_NUMBERS = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile)
_SHARES = (exp.PercentRank, exp.CumeDist)
# one value of the rows in the frame: its type is that of the argument
_PICKS = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue, exp.First, exp.Last, exp.Min, exp.Max)
# functions that depend on the order of rows that ORDER BY leaves equal
ORDERED_BY_ROW = (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead)
ORDERED_IN_FRAME = (exp.FirstValue, exp.LastValue, exp.NthValue, exp.First, exp.Last, exp.AnyValue)
# functions whose result is open even for a fixed order of rows
_LISTS = {"COLLECT_LIST", "COLLECT_SET", "LISTAGG", "MAX_BY", "MIN_BY", "MODE"}

EQUALS_IN_ORDER = "rows that ORDER BY leaves equal are taken in the order of their other columns"


def with_named_windows(expression: exp.Expr, select: exp.Select, context: Context) -> exp.Expr:
    """The expression with `OVER w` replaced by the definition of `w` in the WINDOW clause."""
    named = {w.name.lower(): w for w in select.args.get("windows") or ()}

    def replace(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window) or not node.args.get("alias") or isinstance(node.this, exp.Identifier):
            return node
        name = node.args["alias"].name.lower()
        if name not in named:
            raise invalid(f"there is no window {name}", node, context.sql, "define it in a WINDOW clause")
        base = named[name].copy()
        merged = {k: node.args.get(k) or base.args.get(k) for k in ("partition_by", "order", "spec")}
        return exp.Window(this=node.this.copy(), over=node.args.get("over"), **merged)

    return expression.transform(replace) if named or expression.find(exp.Window) else expression


@dataclass
class Windows:
    """Collects the window calls of one SELECT; all expressions are bound to the columns of `input`.

    Args:
        ties: columns of a correlated subquery that keep the rows of different outer rows apart.
    """

    input: Relation
    context: Context
    ties: Sequence[str] = ()
    calls: list[tuple[exp.Window, str]] = field(default_factory=list)

    def taken_out(self, expression: exp.Expr) -> exp.Expr:
        """The expression over the columns of `build()`."""

        def replace(node: exp.Expr) -> exp.Expr:
            return col(self._call(node)) if isinstance(node, exp.Window) else node

        return expression.transform(replace)

    def build(self) -> Relation:
        """The input with a column for each call."""
        self._compute_times()
        relation, partitions = self._with_partitions()
        groups: dict[frozenset[str], list[tuple[exp.Window, str]]] = {}
        for call, name in self.calls:
            keys = [partitions.get(e, e.name) for e in call.args.get("partition_by") or ()]
            keys = list(dict.fromkeys((*keys, *self.ties)))
            call.set("partition_by", [col(k) for k in keys])
            groups.setdefault(frozenset(keys), []).append((call, name))
        for calls in groups.values():
            keys = [e.name for e in calls[0][0].args["partition_by"]]
            relation = Window(relation, tuple(keys), self._typed(relation, calls))
        return relation

    def _call(self, window: exp.Window) -> str:
        """The column of a call, made once for equal calls."""
        _refuse(window, self.context)
        plain = map_parts(window, lambda e: e.copy())
        for known, name in self.calls:
            if known == plain:
                return name
        name = self.context.namer.fresh(_name(function_of(window)).lower())
        self.calls.append((plain, name))
        return name

    def _with_partitions(self) -> tuple[Relation, dict[exp.Expr, str]]:
        """The input with a column for each expression to partition by."""
        wanted = [e for call, _ in self.calls for e in call.args.get("partition_by") or ()]
        computed = list(dict.fromkeys(e for e in wanted if not isinstance(e, exp.Column)))
        types = typed(self.context.analyzer, self.input, computed)
        fresh = self.context.namer.fresh
        items = [Item(e, Column(fresh("partition"), t.type)) for e, t in zip(computed, types, strict=True)]
        relation = Project(self.input, add_columns(self.input, items)) if items else self.input
        return relation, {i.expression: i.column.name for i in items}

    def _compute_times(self) -> None:
        """Compute each part of a call that uses the current time as a column of the input."""
        parts = (part for call, _ in self.calls for part in scalar_parts(call) if not isinstance(part, exp.Column))
        timed = list(dict.fromkeys(part for part in parts if reads_clock(part)))
        if not timed:
            return
        types = typed(self.context.analyzer, self.input, timed)
        fresh = self.context.namer.fresh
        items = [Item(e, Column(fresh("timed"), t.type)) for e, t in zip(timed, types, strict=True)]
        columns = {i.expression: i.column.name for i in items}
        self.calls = [
            (map_parts(call, lambda e: col(columns[e]) if e in columns else e.copy()), name)
            for call, name in self.calls
        ]
        self.input = Project(self.input, add_columns(self.input, items))

    def _typed(self, relation: Relation, calls: Sequence[tuple[exp.Window, str]]) -> tuple[Item, ...]:
        types = {c.name: c.type for c in relation.columns}
        known = [_known_type(call, types) for call, _ in calls]
        asked = [call for (call, _), type_ in zip(calls, known, strict=True) if type_ is None]
        answers = iter(typed(self.context.analyzer, relation, asked))
        return tuple(
            Item(call, Column(name, type_ or next(answers).type))
            for (call, name), type_ in zip(calls, known, strict=True)
        )


def _refuse(window: exp.Window, context: Context) -> None:
    """Refuse frames that Spark lacks, and calls whose result stays open even for a fixed order of rows."""
    spec, function = window.args.get("spec"), function_of(window)
    if spec is not None and (spec.args.get("kind") or "").upper() == "GROUPS":
        raise unsupported("GROUPS", window, context.sql, "number the peers with DENSE_RANK and use RANGE over it")
    if spec is not None and spec.args.get("exclude"):
        raise unsupported("EXCLUDE", window, context.sql, "subtract the row's own value")
    if any(isinstance(part, exp.Window) for e in scalar_parts(window) for part in e.walk()):
        raise invalid("a window function inside another", window, context.sql, "compute the inner one in a subquery")
    if isinstance(function, exp.AggFunc) and name_of(function) in _LISTS:
        what = f"{_written(function, context)} as a window function"
        raise unsupported(what, window, context.sql, "collect the values with GROUP BY")
    if isinstance(function, ORDERED_IN_FRAME) and order_of(window) and not fixes_peers(window):
        what = f"{_written(function, context)} with a RANGE frame that ends among equals"
        raise unsupported(what, window, context.sql, "write ROWS instead of RANGE")
    if is_open(window):
        context.close_result(_written(function, context), EQUALS_IN_ORDER)


def is_open(window: exp.Window) -> bool:
    """Whether the result depends on the order of rows that ORDER BY leaves equal."""
    return isinstance(function_of(window), ORDERED_BY_ROW + ORDERED_IN_FRAME) or frame_kind(window) == "ROWS"


def frame_kind(window: exp.Window) -> str:
    """ROWS or RANGE."""
    spec = window.args.get("spec")
    return (spec.args.get("kind") or "RANGE").upper() if spec is not None else "RANGE"


def fixes_peers(window: exp.Window) -> bool:
    """Whether one order among equal rows gives a result that RANGE allows.

    A frame that ends with the current row contains all rows equal to it. A further key in ORDER BY shortens that frame,
    which must not change the result.
    """
    start, end = frame_ends(window)
    named = {"UNBOUNDED", "CURRENT ROW"}
    function, nulls = function_of(window), window.this
    if frame_kind(window) == "ROWS" or (start, end) == ("UNBOUNDED", "UNBOUNDED"):
        return True
    if isinstance(nulls, exp.IgnoreNulls) or not isinstance(function, exp.FirstValue | exp.LastValue):
        return False
    if isinstance(function, exp.LastValue):
        return end == "CURRENT ROW" or (end == "UNBOUNDED" and start in named)
    return start == "UNBOUNDED" and end in named


def frame_ends(window: exp.Window) -> tuple[str, str]:
    """How a frame starts and ends: `UNBOUNDED`, `CURRENT ROW`, or the text of a distance."""
    spec = window.args.get("spec")
    if spec is None:
        return "UNBOUNDED", "CURRENT ROW" if order_of(window) else "UNBOUNDED"
    return _end(spec.args.get("start")), _end(spec.args.get("end") or "CURRENT ROW")


def _end(end: exp.Expr | str | None) -> str:
    return end.upper() if isinstance(end, str) else (end.sql() if end is not None else "UNBOUNDED")


def _name(function: exp.Expr) -> str:
    if isinstance(function, exp.AggFunc):
        return name_of(function)
    return function.sql_name() if isinstance(function, exp.Func) else function.key


def _written(function: exp.Expr, context: Context) -> str:
    place = function.meta  # not `place_of`, which may give the place of an argument
    return context.sql[place["start"] : place["end"] + 1].upper() if "start" in place else _name(function)


def _known_type(window: exp.Window, types: dict[str, str]) -> str | None:
    """The type that Spark gives to a call, if the engines agree on it."""
    function = function_of(window)
    if isinstance(function, _NUMBERS):
        return "int"
    if isinstance(function, _SHARES):
        return "double"
    if isinstance(function, exp.Count | exp.CountIf):
        return "bigint"
    argument = types.get(function.this.name) if isinstance(function.this, exp.Column) else None
    if argument is None:
        return None
    if isinstance(function, _PICKS):
        return argument
    if isinstance(function, exp.Sum):
        return sum_type(argument)
    return avg_type(argument) if isinstance(function, exp.Avg) else None
