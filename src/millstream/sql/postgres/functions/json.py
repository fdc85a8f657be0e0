"""JSON: a json or jsonb value is the text that PostgreSQL prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text, convert
from millstream.sql.postgres.constants import jsonb_text, parse_array
from millstream.sql.postgres.functions.json_marks import (
    BARE,
    STRING,
    STRING_PATTERN,
    as_json,
    bound,
    found_at,
    found_in,
    is_marked,
    json_text,
    marked,
    quoted,
    replaced,
    root_of,
)
from millstream.sql.postgres.functions.registry import function
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.values import ITEM, JsonPlace, Value, text_literal

_OPENED, _CLOSED = (rf'\G((?:[^"{brace}]++|{STRING_PATTERN})*+)\{brace}' for brace in "{}")
_KEY = rf"\s*+{STRING_PATTERN}\s*+:"
_NEXT = rf'\G((?:[^",]++|{STRING_PATTERN}|,(?!{_KEY}))*+),(?={_KEY})'


# Operators


def step(value: Value, key: Value) -> Value:
    """`value -> key`."""
    if isinstance(key.constant, int) and key.constant < 0:
        raise RefusalError("-> with a negative index")
    if key.constant is None or (isinstance(key.constant, int) != key.type.is_integer):
        raise RefusalError("-> with a key that is not a constant")
    place = _place(value)
    return _at(JsonPlace(place.root, (*place.path, key.constant)))


def _place(value: Value) -> JsonPlace:
    if value.type == t.JSON:
        hint = "cast it to jsonb first, (...)::jsonb: of json, PostgreSQL shows what was written"
        raise RefusalError("a part of json", hint)
    return value.place or JsonPlace(root_of(value), ())


def _at(place: JsonPlace) -> Value:
    return Value(bound(found_in(place), as_json(ITEM)), t.JSONB, place=place)


def steps(value: Value, path: Value) -> Value:
    """`value #> '{a,0,b}'`."""
    if not isinstance(path.constant, str):
        raise RefusalError("#> with a path that is not a literal", "write '{a,b}'")
    return _along(value, parse_array(path.constant), "#>")


def _along(value: Value, keys: Iterable[str | None], what: str) -> Value:
    place = _place(value)
    for key in keys:
        if key is None:
            raise RefusalError(f"{what} with a NULL in its path", "it is always NULL")
        if key.lstrip("-").isdigit():
            raise RefusalError(f"{what} with a number in its path", "it may be an index or a key: use -> for each step")
        place = JsonPlace(place.root, (*place.path, key))
    return _at(place)


def text_of(value: Value) -> Value:
    """`->>` and `#>>`: what an arrow found, as text."""
    assert value.place is not None
    return Value(bound(found_in(value.place), json_text(ITEM)), t.TEXT)


def has_key(operator: str, value: Value, key: Value) -> Value:
    """`?`: a key of an object or a string of an array; `?|` any, `?&` all of several."""
    root = root_of(value)
    if operator == "?":
        names = [key.constant]
    else:
        raise RefusalError(f"the operator {operator}", "combine tests with ?")
    if not isinstance(names[0], str):
        raise RefusalError("? with a key that is not a constant")
    name = names[0]
    in_object = f"{found_at(root, (name,))} IS NOT NULL"
    strings = f"FROM_JSON({marked(root)}, 'ARRAY<STRING>')"
    in_array = f"COALESCE(ARRAY_CONTAINS({strings}, {text_literal(STRING + name)}), FALSE)"
    is_it = f"COALESCE({found_at(root, ())} = {text_literal(STRING + name)}, FALSE)"
    return Value(f"CASE WHEN {root} IS NOT NULL THEN {in_object} OR {in_array} OR {is_it} END", t.BOOLEAN)


def contains(value: Value, part: Value) -> Value:
    """`@>` with a constant of objects and arrays of strings, and scalars in them."""
    if not isinstance(part.constant, str):
        raise RefusalError("@> of json with what is not a literal", "compare with ->>")
    root, wanted = root_of(value), json.loads(jsonb_text(part.constant), parse_float=_Decimal, parse_int=_Decimal)
    if not isinstance(wanted, dict | list):
        raise RefusalError("@> of json with a scalar", "an array contains it, too: use ?, or jsonb_array_elements")
    tests = _contained(root, (), wanted)
    condition = " AND ".join(f"COALESCE({test}, FALSE)" for test in tests)
    return Value(f"CASE WHEN {root} IS NOT NULL THEN {condition} END", t.BOOLEAN)


class _Decimal(str):
    """A number as it was written."""

    __slots__ = ()


def _contained(root: str, path: tuple[str | int, ...], part: object) -> list[str]:
    found = found_at(root, path)
    if isinstance(part, dict):
        tests = [f"STARTSWITH({found}, '{{')"]
        for key, item in part.items():
            tests += _contained(root, (*path, key), item)
        return tests
    if isinstance(part, list):
        if not all(isinstance(item, str) and not isinstance(item, _Decimal) for item in part):
            raise RefusalError("@> with an array of other than strings", "use jsonb_array_elements")
        strings = f"FROM_JSON({found}, 'ARRAY<STRING>')"
        tests = [f"ARRAY_CONTAINS({strings}, {text_literal(STRING + str(item))})" for item in part]
        return [f"STARTSWITH({found}, '[')", *tests]
    if isinstance(part, _Decimal):
        number = f"TRY_CAST(SUBSTRING({found}, 2) AS DECIMAL(38, 18))"
        return [f"({is_marked(found, BARE)} AND {number} = CAST('{part}' AS DECIMAL(38, 18)))"]
    if isinstance(part, str):
        return [f"({found} = {text_literal(STRING + part)})"]
    return [f"({found} = {text_literal(BARE + json.dumps(part))})"]


def is_json(value: Value, kind: str, *, unique: bool) -> str:
    """IS JSON [OBJECT | ARRAY | SCALAR | VALUE] [WITH UNIQUE KEYS], never NULL but for NULL."""
    valid = f"TRY_PARSE_JSON({value.sql if unique else _apart(value.sql)}) IS NOT NULL"
    first = f"SUBSTRING({_without_space(value.sql)}, 1, 1)"
    more = {
        "": "",
        "VALUE": "",
        "OBJECT": f" AND {first} = '{{'",
        "ARRAY": f" AND {first} = '['",
        "SCALAR": f" AND NOT {first} IN ('{{', '[')",
    }
    if kind.upper() not in more:
        raise RefusalError(f"IS JSON {kind}")
    return f"(CASE WHEN {value.sql} IS NOT NULL THEN {valid}{more[kind.upper()]} END)"


def _without_space(text: str) -> str:
    """Without what JSON takes for space, at its start."""
    return f"TRIM(LEADING {text_literal(' ' + chr(9) + chr(10) + chr(13))} FROM {text})"


def _apart(text: str) -> str:
    """A text that is JSON if the given one is, with each member in an object of its own.

    Spark takes no object that has a key twice. The member that is added keeps `{, "a": 1}` from becoming JSON.
    """
    listed = replaced(replaced(text, _OPENED, "$1[{"), _CLOSED, "$1}]")
    return replaced(listed, _NEXT, f'$1, "{BARE}": 0}}, {{')


# Functions


@function("jsonb_typeof json_typeof", "json")
def _typeof(value: Value) -> Value:
    r = ITEM
    cases = (
        f"CASE WHEN {is_marked(r, STRING)} THEN 'string' WHEN {r} = {text_literal(BARE + 'null')} THEN 'null' "
        f"WHEN {r} IN ({text_literal(BARE + 'true')}, {text_literal(BARE + 'false')}) THEN 'boolean' "
        f"WHEN {is_marked(r, BARE)} THEN 'number' WHEN STARTSWITH({r}, '[') THEN 'array' "
        f"WHEN STARTSWITH({r}, '{{') THEN 'object' END"
    )
    place = value.place or JsonPlace(root_of(value), ())
    return Value(bound(found_in(place), cases), t.TEXT)


@function("jsonb_array_length json_array_length", "json")
def _array_length(value: Value) -> Value:
    return Value(f"JSON_ARRAY_LENGTH({root_of(value)})", t.INTEGER)


@function("jsonb_extract_path json_extract_path", "json text! text!*")
def _extract_path(value: Value, *keys: Value) -> Value:
    return _along(value, [str(key.constant) for key in keys], "jsonb_extract_path")


@function("jsonb_extract_path_text json_extract_path_text", "json text! text!*")
def _extract_path_text(value: Value, *keys: Value) -> Value:
    return text_of(_extract_path(value, *keys))


# Building


def printed(value: Value, space: str = "") -> str:
    """A value as JSON; never NULL. `space` is what stands behind the commas of an array."""
    type_ = value.type
    if value.is_null:
        return "'null'"
    if type_ == t.JSON and space:
        raise RefusalError("json inside of jsonb", "build it with the functions of jsonb, which prints it anew")
    if type_.is_json:
        text = value.sql
    elif type_.is_integer or type_.name in {"numeric", "boolean"}:
        text = as_text(value).sql
    elif type_.name in {"text", "unknown", "date", "uuid", "time", "enum"}:
        text = quoted(as_text(value).sql)
    elif type_ == t.TIMESTAMP:
        text = f"CONCAT('\"', REPLACE({as_text(value).sql}, ' ', 'T'), '\"')"
    elif type_.element is not None:
        items = f"TRANSFORM({value.sql}, {ITEM} -> {printed(Value(ITEM, type_.element), space)})"
        text = f"CONCAT('[', ARRAY_JOIN({items}, ',{space}'), ']')"
    else:
        raise RefusalError(f"{type_} as JSON", "cast it to text or numeric(p, s) first")
    return f"COALESCE({text}, 'null')"


def is_absent(node: exp.Expr, *, default: bool) -> bool:
    """Whether SQL's constructor leaves NULLs out."""
    given = str(node.args.get("null_handling") or "")
    return given.startswith("ABSENT") if given else default


def returning(node: exp.Expr) -> t.Type:
    """The type that SQL's constructor is to return."""
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
    named = [(text_literal(json.dumps(key, ensure_ascii=False) + colon), value) for key, value in ordered]
    members = _joined([(value, f"CONCAT({name}, {printed(value, space)})") for name, value in named], absent=absent)
    return Value(f"CONCAT('{{', {members}, '}}')", type_)


def _joined(members: list[tuple[Value, str]], *, absent: bool) -> str:
    """The members of an object or array with commas between, those that are NULL left out if so asked."""
    texts = [f"CASE WHEN {value.sql} IS NOT NULL THEN {text} END" if absent else text for value, text in members]
    return f"CONCAT_WS(', ', {', '.join(texts)})" if texts else "''"


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
    return Value(f"CONCAT('[', {_joined([(a, printed(a, space)) for a in args], absent=absent)}, ']')", type_)


def _to_json(type_: t.Type) -> Callable[[list[Value]], Value]:
    def rule(args: list[Value]) -> Value:
        if len(args) != 1:
            raise RefusalError(f"to_{type_} of other than one value")
        text = printed(args[0], " " if type_ == t.JSONB else "")
        return Value(f"CASE WHEN {args[0].sql} IS NOT NULL THEN {text} END", type_)

    return rule


def _as_written(value: Value) -> str:
    return convert(value, t.JSON).sql if value.type.name == "unknown" else root_of(value)


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


# For set-returning functions


def elements(value: Value, *, as_texts: bool) -> str:
    """An array's elements, as an array of Spark's."""
    place = value.place
    source = found_in(place) if place is not None else marked(root_of(value))
    item = json_text(ITEM) if as_texts else as_json(ITEM)
    listed = f"CASE WHEN STARTSWITH({_without_space(source)}, '[') THEN FROM_JSON({source}, 'ARRAY<STRING>') END"
    return f"TRANSFORM({listed}, {ITEM} -> {item})"


def entries(value: Value, *, as_texts: bool) -> str:
    """An object's keys and values, as an array of structs of Spark's."""
    place = value.place
    source = found_in(place) if place is not None else marked(root_of(value))
    item = json_text(f"{ITEM}.value") if as_texts else as_json(f"{ITEM}.value")
    listed = f"MAP_ENTRIES(FROM_JSON({source}, 'MAP<STRING, STRING>'))"
    return f"TRANSFORM({listed}, {ITEM} -> NAMED_STRUCT('key', {ITEM}.key, 'value', {item}))"


def keys(value: Value) -> str:
    """An object's keys, as an array of Spark's."""
    return f"JSON_OBJECT_KEYS({value.sql if value.type.is_json else root_of(value)})"
