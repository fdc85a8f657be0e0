"""Calls of aggregates and window functions: their arguments and clauses, taken apart and put together for Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.functions.json_building import is_absent, returning
from millstream.sql.postgres.literals import unknown_literal
from millstream.sql.postgres.ordering import Key, keys_of
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import ONE, Node, fn, when
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.windows import Over, over

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions

STAR = exp.Star()
NEEDS_ORDER = {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"}
"""Window functions for which Spark requires an ORDER BY."""


@dataclass
class Call:
    """A call with its clauses, the arguments translated."""

    name: str
    args: list[Value] = field(default_factory=list)
    is_star: bool = False
    distinct: bool = False
    order: list[Key] = field(default_factory=list)
    within: list[Key] = field(default_factory=list)
    condition: Node | None = None
    window: Over | None = None
    window_order: list[Key] = field(default_factory=list)
    absent: bool = False
    """ABSENT ON NULL."""
    returning: t.Type = t.JSON

    def invoke(
        self, function: str, *args: Node, distinct: bool | None = None, within: list[exp.Ordered] | None = None
    ) -> Node:
        """A Spark aggregate with this call's DISTINCT, FILTER and OVER.

        Spark does not allow FILTER before OVER: the arguments of rows that it excludes become NULL instead.
        """
        given = list(args)
        if self.condition is not None and self.window is not None:
            given = [when(self.condition, ONE if a is STAR else a) for a in given]
        if self.distinct if distinct is None else distinct:
            given = [exp.Distinct(expressions=given)]
        node: Node = fn(function, *given)
        if within:
            node = exp.WithinGroup(this=node, expression=exp.Order(expressions=within))
        if self.condition is not None and self.window is None:
            node = exp.Filter(this=node, expression=exp.Where(this=self.condition))
        return self.window.of(node) if self.window is not None else node


def argument_of(call: Call) -> Value:
    """The single argument of a call."""
    if len(call.args) != 1:
        raise RefusalError(f"{call.name} of {len(call.args)} arguments")
    return call.args[0]


def read(self: Expressions, node: exp.Expr) -> Call:
    """Take a call apart."""
    window: exp.Window | None = None
    condition: exp.Expr | None = None
    within: exp.Expr | None = None
    while isinstance(node, exp.Window | exp.Filter | exp.WithinGroup):
        if isinstance(node, exp.Window):
            window = node
        elif isinstance(node, exp.Filter):
            condition = node.expression.this
        else:
            within = node.expression
        node = node.this
    call = _bare(self, node)
    if window is not None:
        call.window, call.window_order = over(self, window, needs_order=call.name in NEEDS_ORDER)
    if condition is not None:
        call.condition = self.boolean(condition)
    if within is not None:
        call.within = keys_of(self, within.expressions)
    return call


def _bare(self: Expressions, node: exp.Expr) -> Call:
    if isinstance(node, exp.GroupConcat):
        call = Call("string_agg")
        _read_argument(self, call, node.this)
        separator = node.args.get("separator")
        call.args.append(self.translate(separator) if separator is not None else unknown_literal(""))
        return call
    if isinstance(node, exp.JSONObjectAgg):
        if len(node.expressions) != 1:
            raise RefusalError("JSON_OBJECTAGG with such clauses")
        pair = node.expressions[0]
        pair_of = [self.translate(pair.this), self.translate(pair.expression)]
        return Call("json_objectagg", pair_of, absent=is_absent(node, default=False), returning=returning(node))
    if isinstance(node, exp.JSONArrayAgg):
        call = Call("json_arrayagg", absent=is_absent(node, default=True), returning=returning(node))
        _read_argument(self, call, node.this)
        return call
    if not isinstance(node, exp.Anonymous):
        raise RefusalError(f"{node.sql(dialect='postgres')} with FILTER, WITHIN GROUP or OVER")
    call = Call(str(node.this).lower())
    for argument in node.expressions:
        _read_argument(self, call, argument)
    return call


def _read_argument(self: Expressions, call: Call, node: exp.Expr) -> None:
    if isinstance(node, exp.Order):
        call.order = keys_of(self, node.expressions)
        node = node.this
    if isinstance(node, exp.Distinct):
        call.distinct = True
        call.args += [self.translate(e) for e in node.expressions]
    elif isinstance(node, exp.Star):
        call.is_star = True
    else:
        call.args.append(self.translate(node))
