"""Aggregates that collect values: into a text, an array, or JSON."""

from __future__ import annotations

from collections.abc import Callable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.aggregate_calls import STAR, Call, argument_of
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.functions.json_building import printed
from millstream.sql.postgres.ordering import sorted_list
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    ITEM,
    Node,
    each,
    fn,
    is_not_null,
    kept,
    op,
    own_field,
    struct,
    text,
    when,
)
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import array_of


def _string_agg(call: Call) -> Value:
    if len(call.args) != 2 or not isinstance(call.args[1].constant, str):
        raise RefusalError("string_agg with a separator that is not a constant")
    if call.window is not None:
        raise RefusalError("string_agg with OVER")
    x, separator = coerce(call.args[0], t.TEXT), text(call.args[1].constant)
    within = [key.tree for key in call.order]
    return Value(call.invoke("LISTAGG", x.tree, separator, within=within), t.TEXT)


def _array_agg(call: Call) -> Value:
    x = argument_of(call)
    if x.type.element is not None:
        raise RefusalError("array_agg of arrays", "only arrays of one dimension are supported")
    x = coerce(x, t.TEXT) if x.type.name == "unknown" else x
    return Value(_some(call, sorted_list(call, x)), array_of(x.type))


def _some(call: Call, result: Node) -> Node:
    """NULL for no rows, for which Spark returns an empty list."""
    return when(op(call.invoke("COUNT", STAR, distinct=False), ">", 0), result)


def _enclosed(opening: str, items: Node, closing: str) -> Node:
    return fn("CONCAT", text(opening), fn("ARRAY_JOIN", items, text(", ")), text(closing))


def _json_agg(type_: t.Type) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = argument_of(call)
        if call.distinct:
            raise RefusalError(f"{call.name} with DISTINCT")
        if x.type.element is not None and type_ == t.JSON:
            raise RefusalError(f"{call.name} of {x.type}", "use jsonb_agg: json_agg prints one array per line")
        space = " " if type_ == t.JSONB else ""
        listed = sorted_list(call, x)
        if call.absent:
            listed = kept(listed, is_not_null(ITEM))
        items = each(listed, printed(Value(ITEM, x.type), space))
        return Value(_some(call, _enclosed("[", items, "]")), type_)

    return rule


def _json_object_agg(call: Call) -> Value:
    if len(call.args) != 2 or call.order or call.distinct:
        raise RefusalError(f"{call.name} with such arguments")
    if call.window_order:
        raise RefusalError(f"{call.name} over an ordered window", "use jsonb_object_agg, which sorts its keys")
    key, value = coerce(call.args[0], t.TEXT), call.args[1]
    pair = _present(call, value, fn("CONCAT", printed(key), text(" : "), printed(value)))
    listed = fn("ARRAY_SORT", call.invoke("COLLECT_LIST", pair))
    return Value(_some(call, _enclosed("{ ", listed, " }")), t.JSON)


def _jsonb_object_agg(call: Call) -> Value:
    """Keys in jsonb's order. Several values of a key are an error: which one PostgreSQL keeps depends on the order of
    rows.
    """
    if len(call.args) != 2 or call.order or call.distinct:
        raise RefusalError(f"{call.name} with such arguments")
    key, value = coerce(call.args[0], t.TEXT), call.args[1]
    name = printed(key)
    member = fn("CONCAT", name, text(": "), printed(value, " "))
    entry = struct([("n", fn("OCTET_LENGTH", key.tree)), ("k", name), ("v", member)])
    listed = call.invoke("COLLECT_LIST", _present(call, value, entry))
    place = struct([("n", own_field(ITEM, "n")), ("k", own_field(ITEM, "k"))])
    unique = fn("MAP_FROM_ENTRIES", each(listed, struct([("k", place), ("v", own_field(ITEM, "v"))])))
    items = each(fn("ARRAY_SORT", fn("MAP_ENTRIES", unique)), own_field(ITEM, "value"))
    return Value(_some(call, _enclosed("{", items, "}")), t.JSONB)


def _present(call: Call, value: Value, entry: Node) -> Node:
    """An entry, or NULL where ABSENT ON NULL leaves it out, because COLLECT_LIST skips NULLs."""
    return when(is_not_null(value.tree), entry) if call.absent else entry


def _json_arrayagg(call: Call) -> Value:
    return _json_agg(call.returning)(call)


def _json_objectagg(call: Call) -> Value:
    return (_jsonb_object_agg if call.returning == t.JSONB else _json_object_agg)(call)


LISTS: dict[str, Callable[[Call], Value]] = {
    "string_agg": _string_agg,
    "array_agg": _array_agg,
    "json_agg": _json_agg(t.JSON),
    "jsonb_agg": _json_agg(t.JSONB),
    "json_arrayagg": _json_arrayagg,
    "json_object_agg": _json_object_agg,
    "json_objectagg": _json_objectagg,
    "jsonb_object_agg": _jsonb_object_agg,
}
