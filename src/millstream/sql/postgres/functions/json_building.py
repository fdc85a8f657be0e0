"""JSON built from values: json_build_object and similar functions, and SQL's constructors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text, convert
from millstream.sql.postgres.functions.json_marks import quoted, root_of
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import ITEM, Node, each, fn, is_not_null, text, when
from millstream.sql.postgres.typed_expressions import Value


def printed(value: Value, space: str = "") -> Node:
    """A value as JSON; never NULL. `space` follows the commas of an array."""
    type_ = value.type
    if value.is_null:
        return text("null")
    if type_ == t.JSON and space:
        raise RefusalError("json inside jsonb", "build it with the jsonb functions, which print it again")
    if type_.is_json:
        shown = value.tree
    elif type_.is_integer or type_.name in {"numeric", "boolean"}:
        shown = as_text(value).tree
    elif type_.name in {"text", "unknown", "date", "uuid", "time", "enum"}:
        shown = quoted(as_text(value).tree)
    elif type_ == t.TIMESTAMP:
        shown = fn("CONCAT", text('"'), fn("REPLACE", as_text(value).tree, text(" "), text("T")), text('"'))
    elif type_.element is not None:
        items = each(value.tree, printed(Value(ITEM, type_.element), space))
        shown = fn("CONCAT", text("["), fn("ARRAY_JOIN", items, text(f",{space}")), text("]"))
    else:
        raise RefusalError(f"{type_} as JSON", "cast it to text or numeric(p, s) first")
    return fn("COALESCE", shown, text("null"))


def is_absent(node: exp.Expr, *, default: bool) -> bool:
    """Whether SQL's constructor leaves NULLs out."""
    given = str(node.args.get("null_handling") or "")
    return given.startswith("ABSENT") if given else default


def returning(node: exp.Expr) -> t.Type:
    """The type that SQL's constructor returns."""
    kind = node.args.get("return_type")
    name = kind.sql(dialect="postgres").lower() if kind else "json"
    if name not in {"json", "jsonb"}:
        raise RefusalError(f"RETURNING {name}", "return json or jsonb, and cast it")
    return t.JSONB if name == "jsonb" else t.JSON


def _object(pairs: list[tuple[Value, Value]], type_: t.Type, *, absent: bool = False) -> Value:
    keys = [k.constant for k, _ in pairs]
    if not all(isinstance(k, str) for k in keys):
        raise RefusalError("a JSON object with a key that is not a constant text")
    colon, space = (": ", " ") if type_ == t.JSONB else (" : ", "")
    if type_ == t.JSONB:
        last = {str(k): v for k, v in zip(keys, (v for _, v in pairs), strict=True)}
        ordered = sorted(last.items(), key=lambda kv: (len(kv[0].encode()), kv[0].encode()))
    else:
        ordered = [(str(k), v) for k, (_, v) in zip(keys, pairs, strict=True)]
    members = [
        (value, fn("CONCAT", text(json.dumps(key, ensure_ascii=False) + colon), printed(value, space)))
        for key, value in ordered
    ]
    return Value(fn("CONCAT", text("{"), _joined(members, absent=absent), text("}")), type_)


def _joined(members: Sequence[tuple[Value, Node]], *, absent: bool) -> Node:
    """The members of an object or array with commas between them; without those that are NULL if `absent`."""
    shown = [when(is_not_null(value.tree), member) if absent else member for value, member in members]
    return fn("CONCAT_WS", text(", "), *shown) if shown else text("")


def _pairs(args: list[Value]) -> list[tuple[Value, Value]]:
    if len(args) % 2:
        raise RefusalError("a JSON object of an odd number of arguments")
    return list(zip(args[::2], args[1::2], strict=True))


def _array(args: list[Value], type_: t.Type) -> Value:
    return sql_array(args, type_, absent=False)


def sql_object(pairs: list[tuple[Value, Value]], type_: t.Type, *, absent: bool) -> Value:
    """JSON_OBJECT(key : value, ...)."""
    return _object(pairs, type_, absent=absent)


def sql_array(args: list[Value], type_: t.Type, *, absent: bool) -> Value:
    """JSON_ARRAY(value, ...)."""
    space = " " if type_ == t.JSONB else ""
    members = _joined([(a, printed(a, space)) for a in args], absent=absent)
    return Value(fn("CONCAT", text("["), members, text("]")), type_)


def _to_json(type_: t.Type) -> Callable[[list[Value]], Value]:
    def rule(args: list[Value]) -> Value:
        if len(args) != 1:
            raise RefusalError(f"to_{type_} with other than one value")
        shown = printed(args[0], " " if type_ == t.JSONB else "")
        return Value(when(is_not_null(args[0].tree), shown), type_)

    return rule


def _as_written(value: Value) -> Node:
    return convert(value, t.JSON).tree if value.type.name == "unknown" else root_of(value)


BUILDERS: dict[str, Callable[[list[Value]], Value]] = {
    "json_build_object": lambda args: _object(_pairs(args), t.JSON),
    "jsonb_build_object": lambda args: _object(_pairs(args), t.JSONB),
    "json_build_array": lambda args: _array(args, t.JSON),
    "jsonb_build_array": lambda args: _array(args, t.JSONB),
    "to_json": _to_json(t.JSON),
    "to_jsonb": _to_json(t.JSONB),
    "json": lambda args: Value(_as_written(args[0]), t.JSON),
    "json_scalar": _to_json(t.JSON),
    "json_serialize": lambda args: Value(_as_written(args[0]), t.TEXT),
}
