"""JSON functions and operators: a json or jsonb value is the text that PostgreSQL prints."""

from __future__ import annotations

import json
from collections.abc import Iterable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.constants import jsonb_text, parse_array
from millstream.sql.postgres.functions.json_marks import (
    BARE,
    STRING,
    STRING_PATTERN,
    as_json,
    found_at,
    found_in,
    json_text,
    marked,
    replaced,
    root_of,
    starts_with,
    strings_in,
    unmarked,
)
from millstream.sql.postgres.functions.registry import function
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    FALSE,
    ITEM,
    Node,
    and_,
    cases,
    each,
    fn,
    in_,
    is_not_null,
    let,
    not_,
    op,
    or_,
    own_field,
    struct,
    text,
    trim,
    when,
)
from millstream.sql.postgres.spark_casts import cast, try_cast
from millstream.sql.postgres.typed_expressions import JsonPlace, Value

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
        hint = "cast it to jsonb first, (...)::jsonb: PostgreSQL returns json as it was written"
        raise RefusalError("a part of json", hint)
    return value.place or JsonPlace(root_of(value), ())


def _at(place: JsonPlace) -> Value:
    return Value(let(found_in(place), as_json(ITEM)), t.JSONB, place=place)


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
    """`->>` and `#>>`: the value that an arrow found, as text."""
    assert value.place is not None
    return Value(let(found_in(value.place), json_text(ITEM)), t.TEXT)


def has_key(operator: str, value: Value, key: Value) -> Value:
    """`?`: a key of an object or a string in an array; `?|` any, `?&` all of several."""
    root = root_of(value)
    if operator != "?":
        raise RefusalError(f"the operator {operator}", "combine tests with ?")
    if not isinstance(key.constant, str):
        raise RefusalError("? with a key that is not a constant")
    string = text(STRING + key.constant)
    in_object = is_not_null(found_at(root, (key.constant,)))
    in_array = _surely(fn("ARRAY_CONTAINS", strings_in(marked(root)), string))
    is_it = _surely(op(found_at(root, ()), "=", string))
    return Value(when(is_not_null(root), or_(in_object, in_array, is_it)), t.BOOLEAN)


def _surely(test: Node) -> Node:
    """The test, false where it is NULL."""
    return fn("COALESCE", test, FALSE)


def contains(value: Value, part: Value) -> Value:
    """`@>` with a constant that consists of objects, arrays of strings, and scalars in objects."""
    if not isinstance(part.constant, str):
        raise RefusalError("@> of json with anything but a literal", "compare with ->>")
    root, wanted = root_of(value), json.loads(jsonb_text(part.constant), parse_float=_Decimal, parse_int=_Decimal)
    if not isinstance(wanted, dict | list):
        raise RefusalError("@> of json with a scalar", "an array with it also matches: use ?, or jsonb_array_elements")
    tests = _contained(root, (), wanted)
    return Value(when(is_not_null(root), and_(*map(_surely, tests))), t.BOOLEAN)


class _Decimal(str):
    """A number as it was written."""

    __slots__ = ()


def _contained(root: Node, path: tuple[str | int, ...], part: object) -> list[Node]:
    found = found_at(root, path)
    if isinstance(part, dict):
        tests = [starts_with(found, "{")]
        for key, item in part.items():
            tests += _contained(root, (*path, key), item)
        return tests
    if isinstance(part, list):
        if not all(isinstance(item, str) and not isinstance(item, _Decimal) for item in part):
            raise RefusalError("@> with an array of anything but strings", "use jsonb_array_elements")
        strings = strings_in(found)
        return [starts_with(found, "["), *(fn("ARRAY_CONTAINS", strings, text(f"{STRING}{i}")) for i in part)]
    if isinstance(part, _Decimal):
        wide = t.numeric(t.MAX_DIGITS, t.DEFAULT_SCALE)
        is_equal = op(try_cast(unmarked(found), wide), "=", cast(text(str(part)), wide))
        return [and_(starts_with(found, BARE), is_equal)]
    if isinstance(part, str):
        return [op(found, "=", text(STRING + part))]
    return [op(found, "=", text(BARE + json.dumps(part)))]


def is_json(value: Value, kind: str, *, unique: bool) -> Node:
    """IS JSON [OBJECT | ARRAY | SCALAR | VALUE] [WITH UNIQUE KEYS], NULL only for NULL."""
    tests = [is_not_null(fn("TRY_PARSE_JSON", value.tree if unique else _apart(value.tree)))]
    first = fn("SUBSTRING", _without_space(value.tree), 1, 1)
    more: dict[str, list[Node]] = {
        "": [],
        "VALUE": [],
        "OBJECT": [op(first, "=", text("{"))],
        "ARRAY": [op(first, "=", text("["))],
        "SCALAR": [not_(in_(first, (text("{"), text("["))))],
    }
    if kind.upper() not in more:
        raise RefusalError(f"IS JSON {kind}")
    return when(is_not_null(value.tree), and_(*tests, *more[kind.upper()]))


def _without_space(node: Node) -> Node:
    """The text without leading JSON whitespace."""
    return trim("LEADING", text(" \t\n\r"), node)


def _apart(node: Node) -> Node:
    """A text that is JSON exactly if the given one is, with each member in a separate object.

    Spark rejects an object that has a key twice. The added member keeps `{, "a": 1}` from becoming JSON.
    """
    listed = replaced(replaced(node, _OPENED, "$1[{"), _CLOSED, "$1}]")
    return replaced(listed, _NEXT, f'$1, "{BARE}": 0}}, {{')


# Functions


@function("jsonb_typeof json_typeof", "json")
def _typeof(value: Value) -> Value:
    kind = cases(
        (starts_with(ITEM, STRING), text("string")),
        (op(ITEM, "=", text(f"{BARE}null")), text("null")),
        (in_(ITEM, (text(f"{BARE}true"), text(f"{BARE}false"))), text("boolean")),
        (starts_with(ITEM, BARE), text("number")),
        (starts_with(ITEM, "["), text("array")),
        (starts_with(ITEM, "{"), text("object")),
    )
    place = value.place or JsonPlace(root_of(value), ())
    return Value(let(found_in(place), kind), t.TEXT)


@function("jsonb_array_length json_array_length", "json")
def _array_length(value: Value) -> Value:
    return Value(fn("JSON_ARRAY_LENGTH", root_of(value)), t.INTEGER)


@function("jsonb_extract_path json_extract_path", "json text! text!*")
def _extract_path(value: Value, *keys: Value) -> Value:
    return _along(value, [str(key.constant) for key in keys], "jsonb_extract_path")


@function("jsonb_extract_path_text json_extract_path_text", "json text! text!*")
def _extract_path_text(value: Value, *keys: Value) -> Value:
    return text_of(_extract_path(value, *keys))


# For set-returning functions


def elements(value: Value, *, as_texts: bool) -> Node:
    """An array's elements, as a Spark array."""
    source = _source(value)
    item = json_text(ITEM) if as_texts else as_json(ITEM)
    return each(when(starts_with(_without_space(source), "["), strings_in(source)), item)


def entries(value: Value, *, as_texts: bool) -> Node:
    """An object's keys and values, as a Spark array of structs."""
    found = own_field(ITEM, "value")
    item = json_text(found) if as_texts else as_json(found)
    listed = fn("MAP_ENTRIES", fn("FROM_JSON", _source(value), text("MAP<STRING, STRING>")))
    return each(listed, struct([("key", own_field(ITEM, "key")), ("value", item)]))


def keys(value: Value) -> Node:
    """An object's keys, as a Spark array."""
    return fn("JSON_OBJECT_KEYS", value.tree if value.type.is_json else root_of(value))


def _source(value: Value) -> Node:
    return found_in(value.place) if value.place is not None else marked(root_of(value))
