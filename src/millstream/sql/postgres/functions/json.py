"""JSON: a json or jsonb value is the text that PostgreSQL prints.

Spark's own functions read numbers as doubles and take the quotes off strings, so that `1.50`, `"1"` and `true` cannot
be told apart from `1.5`, `1` and `"true"`. Before Spark reads a text, every scalar in it therefore becomes a string
that begins with a mark: one for what had no quotes, another for strings. What is found is then printed as jsonb would
print it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text, convert
from millstream.sql.postgres.constants import jsonb_text, parse_array
from millstream.sql.postgres.functions.registry import function
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.values import ITEM, JsonPlace, Value, text_literal

BARE, STRING = "\ue001", "\ue002"
"""Marks, of the private use area of Unicode."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_VALUES = rf'\G((?:[^"]++|{_STRING}\s*+:)*+)"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_SCALARS = rf'\G((?:[^"\w.+-]++|{_STRING})*+)([\w.+-]++)'
_MARKS = rf'\G((?:[^,:"]++|{_STRING})*+)([,:])'
_OPENED, _CLOSED = (rf'\G((?:[^"{brace}]++|{_STRING})*+)\{brace}' for brace in "{}")
_KEY = rf"\s*+{_STRING}\s*+:"
_NEXT = rf'\G((?:[^",]++|{_STRING}|,(?!{_KEY}))*+),(?={_KEY})'


def _root(value: Value) -> str:
    """The text of a json value; a text column is taken for one, since that is how they are mirrored."""
    if value.type.name == "unknown":
        value = convert(value, t.JSONB)
    if not value.type.is_json and value.type != t.TEXT:
        raise RefusalError(f"{value.type} where json is needed")
    return value.sql


def _marked(text: str) -> str:
    return _replaced(_replaced(text, _VALUES, f'$1"{STRING}$2"'), _SCALARS, f'$1"{BARE}$2"')


def _replaced(text: str, pattern: str, new: str) -> str:
    return f"REGEXP_REPLACE({text}, {text_literal(pattern)}, {text_literal(new)})"


def _path(steps: tuple[str | int, ...]) -> str:
    out = "$"
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z_]\w*", step, re.ASCII):
            out += f".{step}"
        elif step and not set(step) & set("'?*"):
            out += f"['{step}']"
        else:
            raise RefusalError(f"the JSON key {step!r}", "Spark's paths have no way to write it")
    return out


def _found(root: str, steps: tuple[str | int, ...]) -> str:
    return f"GET_JSON_OBJECT({_marked(root)}, {text_literal(_path(steps))})"


def _bound(fragment: str, body: str) -> str:
    """`body` with ITEM standing for the fragment, which is then computed once."""
    return f"GET(TRANSFORM(ARRAY({fragment}), {ITEM} -> {body}), 0)"


def _container(r: str) -> str:
    """An object or array as jsonb prints it."""
    plain = _replaced(r, f'"{STRING}', '"')
    return _replaced(_replaced(plain, f'"{BARE}([^"]*+)"', "$1"), _MARKS, "$1$2 ")


def _is_marked(r: str, mark: str) -> str:
    return f"STARTSWITH({r}, {text_literal(mark)})"


def _as_json(r: str) -> str:
    """What was found, as json."""
    text = f"SUBSTRING({r}, 2)"
    return (
        f"CASE WHEN {_is_marked(r, BARE)} THEN {text} WHEN {_is_marked(r, STRING)} THEN {quoted(text)} "
        f"ELSE {_container(r)} END"
    )


def _as_text(r: str) -> str:
    """What was found, as text: a string without quotes, null as NULL."""
    null = f"{r} = {text_literal(BARE + 'null')}"
    scalar = f"{_is_marked(r, BARE)} OR {_is_marked(r, STRING)}"
    return f"CASE WHEN {null} THEN NULL WHEN {scalar} THEN SUBSTRING({r}, 2) ELSE {_container(r)} END"


def quoted(text: str) -> str:
    """A text as a JSON string."""
    listed = f"TO_JSON(ARRAY({text}))"
    return f"SUBSTRING({listed}, 2, LENGTH({listed}) - 2)"


# Operators


def step(value: Value, key: Value) -> Value:
    """`value -> key`."""
    if isinstance(key.constant, int) and key.constant < 0:
        raise RefusalError("-> with a negative index")
    if key.constant is None or (isinstance(key.constant, int) != key.type.is_integer):
        raise RefusalError("-> with a key that is not a constant")
    place = value.place or JsonPlace(_root(value), ())
    place = JsonPlace(place.root, (*place.path, key.constant))
    return _at(place, value.type if value.type.is_json else t.JSONB)


def _at(place: JsonPlace, type_: t.Type) -> Value:
    return Value(_bound(_found(place.root, place.path), _as_json(ITEM)), type_, place=place)


def steps(value: Value, path: Value) -> Value:
    """`value #> '{a,0,b}'`."""
    if not isinstance(path.constant, str):
        raise RefusalError("#> with a path that is not a literal", "write '{a,b}'")
    keys = [part for part in parse_array(path.constant) if part is not None]
    if any(key.lstrip("-").isdigit() for key in keys):
        raise RefusalError("#> with a number in its path", "it may be an index or a key: use -> for each step")
    place = value.place or JsonPlace(_root(value), ())
    return _at(JsonPlace(place.root, (*place.path, *keys)), value.type if value.type.is_json else t.JSONB)


def text_of(value: Value) -> Value:
    """`->>` and `#>>`: what an arrow found, as text."""
    assert value.place is not None
    return Value(_bound(_found(value.place.root, value.place.path), _as_text(ITEM)), t.TEXT)


def has_key(operator: str, value: Value, key: Value) -> Value:
    """`?`: a key of an object or a string of an array; `?|` any, `?&` all of several."""
    root = _root(value)
    if operator == "?":
        names = [key.constant]
    else:
        raise RefusalError(f"the operator {operator}", "combine tests with ?")
    if not isinstance(names[0], str):
        raise RefusalError("? with a key that is not a constant")
    name = names[0]
    in_object = f"{_found(root, (name,))} IS NOT NULL"
    strings = f"FROM_JSON({_marked(root)}, 'ARRAY<STRING>')"
    in_array = f"COALESCE(ARRAY_CONTAINS({strings}, {text_literal(STRING + name)}), FALSE)"
    return Value(f"CASE WHEN {root} IS NOT NULL THEN {in_object} OR {in_array} END", t.BOOLEAN)


def contains(value: Value, part: Value) -> Value:
    """`@>` with a constant of objects, scalars, and arrays of strings."""
    if not isinstance(part.constant, str):
        raise RefusalError("@> of json with what is not a literal", "compare with ->>")
    root = _root(value)
    tests = _contained(root, (), json.loads(jsonb_text(part.constant), parse_float=_Decimal, parse_int=_Decimal))
    condition = " AND ".join(f"COALESCE({test}, FALSE)" for test in tests)
    return Value(f"CASE WHEN {root} IS NOT NULL THEN {condition} END", t.BOOLEAN)


class _Decimal(str):
    """A number as it was written."""

    __slots__ = ()


def _contained(root: str, path: tuple[str | int, ...], part: object) -> list[str]:
    found = _found(root, path)
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
        return [f"({_is_marked(found, BARE)} AND {number} = CAST('{part}' AS DECIMAL(38, 18)))"]
    if isinstance(part, str):
        return [f"({found} = {text_literal(STRING + part)})"]
    return [f"({found} = {text_literal(BARE + json.dumps(part))})"]


def is_json(value: Value, kind: str, *, unique: bool) -> str:
    """IS JSON [OBJECT | ARRAY | SCALAR | VALUE] [WITH UNIQUE KEYS], never NULL but for NULL."""
    valid = f"TRY_PARSE_JSON({value.sql if unique else _apart(value.sql)}) IS NOT NULL"
    first = f"SUBSTRING(LTRIM({value.sql}), 1, 1)"
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


def _apart(text: str) -> str:
    """A text that is JSON if the given one is, with each member in an object of its own.

    Spark takes no object that has a key twice. The member that is added keeps `{, "a": 1}` from becoming JSON.
    """
    listed = _replaced(_replaced(text, _OPENED, "$1[{"), _CLOSED, "$1}]")
    return _replaced(listed, _NEXT, f'$1, "{BARE}": 0}}, {{')


# Functions


@function("jsonb_typeof json_typeof", "json")
def _typeof(value: Value) -> Value:
    r = ITEM
    cases = (
        f"CASE WHEN {_is_marked(r, STRING)} THEN 'string' WHEN {r} = {text_literal(BARE + 'null')} THEN 'null' "
        f"WHEN {r} IN ({text_literal(BARE + 'true')}, {text_literal(BARE + 'false')}) THEN 'boolean' "
        f"WHEN {_is_marked(r, BARE)} THEN 'number' WHEN STARTSWITH({r}, '[') THEN 'array' "
        f"WHEN STARTSWITH({r}, '{{') THEN 'object' END"
    )
    place = value.place or JsonPlace(_root(value), ())
    return Value(_bound(_found(place.root, place.path), cases), t.TEXT)


@function("jsonb_array_length json_array_length", "json")
def _array_length(value: Value) -> Value:
    return Value(f"JSON_ARRAY_LENGTH({_root(value)})", t.INTEGER)


@function("jsonb_extract_path json_extract_path", "json text! text!*")
def _extract_path(value: Value, *keys: Value) -> Value:
    for key in keys:
        value = step(value, key)
    return value


@function("jsonb_extract_path_text json_extract_path_text", "json text! text!*")
def _extract_path_text(value: Value, *keys: Value) -> Value:
    return text_of(_extract_path(value, *keys))


# Building


def printed(value: Value, space: str = "") -> str:
    """A value as JSON; never NULL. `space` is what stands behind the commas of an array."""
    type_ = value.type
    if value.is_null:
        return "'null'"
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


BUILDERS: dict[str, Callable[[list[Value]], Value]] = {
    "json_build_object": lambda args: _object(_pairs(args), t.JSON),
    "jsonb_build_object": lambda args: _object(_pairs(args), t.JSONB),
    "json_build_array": lambda args: _array(args, t.JSON),
    "jsonb_build_array": lambda args: _array(args, t.JSONB),
    "to_json": _to_json(t.JSON),
    "to_jsonb": _to_json(t.JSONB),
    "json": lambda args: Value(_root(args[0]), t.JSON),
    "json_scalar": _to_json(t.JSON),
    "json_serialize": lambda args: Value(_root(args[0]), t.TEXT),
}


# For set-returning functions


def elements(value: Value, *, as_texts: bool) -> str:
    """An array's elements, as an array of Spark's."""
    place = value.place
    source = _found(place.root, place.path) if place is not None else _marked(_root(value))
    item = _as_text(ITEM) if as_texts else _as_json(ITEM)
    listed = f"CASE WHEN STARTSWITH(LTRIM({source}), '[') THEN FROM_JSON({source}, 'ARRAY<STRING>') END"
    return f"TRANSFORM({listed}, {ITEM} -> {item})"


def entries(value: Value, *, as_texts: bool) -> str:
    """An object's keys and values, as an array of structs of Spark's."""
    place = value.place
    source = _found(place.root, place.path) if place is not None else _marked(_root(value))
    item = _as_text(f"{ITEM}.value") if as_texts else _as_json(f"{ITEM}.value")
    listed = f"MAP_ENTRIES(FROM_JSON({source}, 'MAP<STRING, STRING>'))"
    return f"TRANSFORM({listed}, {ITEM} -> NAMED_STRUCT('key', {ITEM}.key, 'value', {item}))"


def keys(value: Value) -> str:
    """An object's keys, as an array of Spark's."""
    return f"JSON_OBJECT_KEYS({value.sql if value.type.is_json else _root(value)})"


def element_at(item: str, steps_: tuple[str | int, ...]) -> str:
    """What is at a place inside of an element that still has its marks, with its marks."""
    return f"GET_JSON_OBJECT({item}, {text_literal(_path(steps_))})" if steps_ else item


def json_of(found: str) -> str:
    """What was found, as json."""
    return _bound(found, _as_json(ITEM))


def scalar_of(
    found: str, read: Callable[[str], str], empty: str = "NULL", error: str = "NULL", *, is_text: bool
) -> str:
    """What `read` makes of the text of a scalar that was found, as JSON_VALUE does.

    Args:
        empty: the value if nothing was found.
        error: the value if an object or array was found, or if `read` gives NULL.
        is_text: whether the text itself is wanted: PostgreSQL's of a boolean is t or f.
    """
    r, text = ITEM, f"SUBSTRING({ITEM}, 2)"
    bare = f"CASE {text} WHEN 'true' THEN 't' WHEN 'false' THEN 'f' ELSE {text} END" if is_text else text
    scalar = f"CASE WHEN {_is_marked(r, BARE)} THEN {bare} WHEN {_is_marked(r, STRING)} THEN {text} END"
    cases = f"WHEN {r} = {text_literal(BARE + 'null')} THEN NULL"
    if empty != "NULL":
        cases = f"WHEN {r} IS NULL THEN {empty} {cases}"
    elif error != "NULL":
        cases = f"WHEN {r} IS NULL THEN NULL {cases}"
    value = read(scalar)
    return _bound(found, f"CASE {cases} ELSE {value if error == 'NULL' else f'COALESCE({value}, {error})'} END")


def marked_elements(value: Value, path: tuple[str | int, ...]) -> str:
    """An array's elements with their marks on, for JSON_TABLE."""
    place = value.place or JsonPlace(_root(value), ())
    source = _found(place.root, (*place.path, *path))
    return f"FROM_JSON({source}, 'ARRAY<STRING>')"
