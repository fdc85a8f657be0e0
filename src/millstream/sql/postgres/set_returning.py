"""Set-returning functions in FROM, as arrays that Spark explodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce, convert, unify
from millstream.sql.postgres.clocks import moment
from millstream.sql.postgres.functions import call
from millstream.sql.postgres.functions import json as json_functions
from millstream.sql.postgres.names import Output
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    ITEM,
    PLACE,
    Node,
    and_,
    fn,
    is_null,
    lambda_,
    number,
    op,
    or_,
    own_field,
    struct,
    when,
    whole_number,
)
from millstream.sql.postgres.spark_casts import cast, fail_unless
from millstream.sql.postgres.typed_expressions import Value


@dataclass(frozen=True, slots=True)
class Series:
    """The rows of a function: a Spark array of values or structs, and their columns."""

    array: Node
    columns: tuple[Output, ...]
    is_struct: bool = False
    is_named: bool = False
    """The single column has a fixed name, which the alias does not replace."""

    def generator(self, *, ordinality: bool) -> Node:
        """The generator for FROM."""
        if not ordinality:
            return fn("INLINE" if self.is_struct else "EXPLODE", self.array)
        fields: list[tuple[str, Node]] = [("c0", ITEM)]
        if self.is_struct:
            fields = [(f"c{i}", own_field(ITEM, c.name)) for i, c in enumerate(self.columns)]
        entry = struct([*fields, ("n", cast(op(PLACE, "+", 1), t.BIGINT))])
        return fn("INLINE", fn("TRANSFORM", self.array, lambda_(entry, ITEM, PLACE)))


def series(name: str, args: list[Value]) -> Series:
    """The rows of a function.

    Raises:
        RefusalError: the function is unknown.
    """
    rule = _SERIES.get(name)
    if rule is None:
        raise RefusalError(f"the function {name} in FROM")
    return rule(args)


def _unnest(args: list[Value]) -> Series:
    for value in args:
        if value.type.element is None:
            raise RefusalError(f"unnest of {value.type}", "cast it to an array")
        if value.type.element.fields:
            raise RefusalError("unnest of composite values")
    if len(args) == 1:
        assert args[0].type.element is not None
        return Series(args[0].tree, (Output("unnest", args[0].type.element),))
    columns = tuple(Output(f"unnest{i}", a.type.element or t.TEXT) for i, a in enumerate(args))
    longest = fn("GREATEST", *(fn("COALESCE", fn("CARDINALITY", a.tree), 0) for a in args))
    row = struct([(f"unnest{i}", fn("GET", a.tree, PLACE)) for i, a in enumerate(args)])
    rows = fn("TRANSFORM", fn("SEQUENCE", 0, op(longest, "-", 1)), lambda_(row, PLACE))
    return Series(when(op(longest, ">", 0), rows), columns, is_struct=True)


def _generate_series(args: list[Value]) -> Series:
    if not 2 <= len(args) <= 3:
        raise RefusalError(f"generate_series of {len(args)} arguments")
    if any(a.type.is_time for a in args[:2]):
        return _series_of_times(args)
    values, type_ = unify(args)
    if not type_.is_integer:
        raise RefusalError(f"generate_series of {type_}", "cast the bounds to integer or bigint")
    first, last = values[0].tree, values[1].tree
    step = values[2].tree if len(args) == 3 else cast(1, type_)
    upward = and_(op(step, ">", 0), op(first, "<=", last))
    downward = and_(op(step, "<", 0), op(first, ">=", last))
    array: Node = when(or_(upward, downward), fn("SEQUENCE", first, last, step))
    if len(args) == 3 and not isinstance(args[2].constant, int):
        is_step = or_(op(step, "<>", 0), is_null(step))
        array = fail_unless(is_step, array, "step size cannot equal zero", cast(step, t.TEXT))
    elif len(args) == 3 and args[2].constant == 0:
        raise RefusalError("generate_series with a step of zero")
    return Series(array, (Output("generate_series", type_),))


_EARLY = re.compile(r"\d{4}-\d\d?-(0?[1-9]|1\d|2[0-8])\b")
"""A day that every month has."""


def _is_early(node: Node) -> bool:
    """Whether a node is a literal of such a day, perhaps converted to an instant."""
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
        return node.this.is_string and _EARLY.match(node.this.name) is not None
    otherwise = node.args.get("default") if isinstance(node, exp.Case) else None
    return isinstance(otherwise, exp.Cast) and _is_early(otherwise.this) and node == moment(otherwise.this)


def _series_of_times(args: list[Value]) -> Series:
    if len(args) != 3:
        raise RefusalError("generate_series of timestamps without a step")
    (first, last), type_ = unify(args[:2])
    if type_ == t.DATE:
        type_ = t.TIMESTAMPTZ  # as for date_trunc of a date
        first, last = convert(first, type_), convert(last, type_)
    by = coerce(args[2], t.INTERVAL).interval
    assert by is not None
    months, days, micros = (whole_number(part) for part in (by.months, by.days, by.micros))
    if months != 0 and not any(_is_early(node) for node in (args[0].tree, first.tree)):
        hint = "PostgreSQL adds months step by step, so a 31st stays a 28th: start from a literal before the 29th"
        raise RefusalError("generate_series by months from such a start", hint)
    if months is None or days is None or micros is None:
        raise RefusalError("generate_series by an interval that is not a constant")
    parts = (months, days, micros)
    if sum(part != 0 for part in parts) != 1:
        raise RefusalError("generate_series by an interval of several units")
    step = fn("MAKE_YM_INTERVAL", 0, months)
    if months == 0:
        step = fn("MAKE_DT_INTERVAL", days, 0, 0, number(f"{micros / 1_000_000:.6f}"))
    is_forward = op(first.tree, "<=" if all(part >= 0 for part in parts) else ">=", last.tree)
    array = when(is_forward, fn("SEQUENCE", first.tree, last.tree, step))
    return Series(array, (Output("generate_series", type_),))


def _json(value: Value) -> Value:
    if value.type == t.JSON:
        hint = "cast it to jsonb, and use the jsonb function: PostgreSQL returns json as it was written"
        raise RefusalError("the parts of json", hint)
    return convert(value, t.JSONB) if value.type.name == "unknown" else value


def _elements(*, as_texts: bool) -> Callable[[list[Value]], Series]:
    def rule(args: list[Value]) -> Series:
        type_ = t.TEXT if as_texts else t.JSONB
        return Series(
            json_functions.elements(_json(args[0]), as_texts=as_texts), (Output("value", type_),), is_named=True
        )

    return rule


def _each(*, as_texts: bool) -> Callable[[list[Value]], Series]:
    def rule(args: list[Value]) -> Series:
        columns = (Output("key", t.TEXT), Output("value", t.TEXT if as_texts else t.JSONB))
        return Series(json_functions.entries(_json(args[0]), as_texts=as_texts), columns, is_struct=True)

    return rule


def _keys(name: str) -> Callable[[list[Value]], Series]:
    return lambda args: Series(json_functions.keys(_json(args[0])), (Output(name, t.TEXT),))


def _split(name: str, function: str) -> Callable[[list[Value]], Series]:
    return lambda args: Series(call(function, args).tree, (Output(name, t.TEXT),))


_SERIES: dict[str, Callable[[list[Value]], Series]] = {
    "unnest": _unnest,
    "generate_series": _generate_series,
    "jsonb_array_elements": _elements(as_texts=False),
    "json_array_elements": _elements(as_texts=False),
    "jsonb_array_elements_text": _elements(as_texts=True),
    "json_array_elements_text": _elements(as_texts=True),
    "jsonb_each": _each(as_texts=False),
    "json_each": _each(as_texts=False),
    "jsonb_each_text": _each(as_texts=True),
    "json_each_text": _each(as_texts=True),
    "jsonb_object_keys": _keys("jsonb_object_keys"),
    "json_object_keys": _keys("json_object_keys"),
    "string_to_table": _split("string_to_table", "string_to_array"),
    "regexp_split_to_table": _split("regexp_split_to_table", "regexp_split_to_array"),
}
NAMES = frozenset(_SERIES)
