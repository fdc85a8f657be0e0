"""Marks that are added to JSON texts before Spark reads them, so that Spark does not change the values.

Spark's own functions read numbers as doubles and remove the quotes of strings, so that `1.50`, `"1"` and `true` cannot
be distinguished from `1.5`, `1` and `"true"`. So before Spark reads a text, every scalar in it becomes a string that
begins with a mark: one for scalars without quotes, another for strings. The result is then printed as jsonb would print
it.
"""

from __future__ import annotations

import re

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import convert
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import NULL, Node, array, cases, fn, op, or_, text, when
from millstream.sql.postgres.typed_expressions import JsonPlace, Value

BARE, STRING = "\ue001", "\ue002"
"""The marks, from Unicode's private use area."""

STRING_PATTERN = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_VALUES = rf'\G((?:[^"]++|{STRING_PATTERN}\s*+:)*+)"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_SCALARS = rf'\G((?:[^"\w.+-]++|{STRING_PATTERN})*+)([\w.+-]++)'
_MARKS = rf'\G((?:[^,:"]++|{STRING_PATTERN})*+)([,:])'


def root_of(value: Value) -> Node:
    """The text of a json value; a text column counts as one, since json columns are mirrored as texts."""
    if value.type.name == "unknown":
        value = convert(value, t.JSONB)
    if not value.type.is_json and value.type != t.TEXT:
        raise RefusalError(f"{value.type} where json is needed")
    return value.tree


def marked(json: Node) -> Node:
    """A JSON text with its marks."""
    return replaced(replaced(json, _VALUES, f'$1"{STRING}$2"'), _SCALARS, f'$1"{BARE}$2"')


def replaced(node: Node, pattern: str, new: str) -> Node:
    """A text with every match of a pattern replaced."""
    return fn("REGEXP_REPLACE", node, text(pattern), text(new))


def path_text(steps: tuple[str | int, ...]) -> str:
    """Steps as a Spark path."""
    out = "$"
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z_]\w*", step, re.ASCII):
            out += f".{step}"
        elif step and not set(step) & set("'?*"):
            out += f"['{step}']"
        else:
            raise RefusalError(f"the JSON key {step!r}", "Spark's paths cannot express it")
    return out


def found_at(root: Node, steps: tuple[str | int, ...]) -> Node:
    """The value at a path in a text, with its marks."""
    return fn("GET_JSON_OBJECT", marked(root), text(path_text(steps)))


def found_in(place: JsonPlace) -> Node:
    """The value that arrows lead to, with its marks; `-> 0` of a scalar is the scalar."""
    path, found = place.path, [found_at(place.root, place.path)]
    while path and path[-1] == 0:
        path = path[:-1]
        above = found_at(place.root, path)
        found.append(when(is_scalar(above), above))
    return found[0] if len(found) == 1 else fn("COALESCE", *found)


def _container(found: Node) -> Node:
    """An object or array as jsonb prints it."""
    plain = replaced(found, f'"{STRING}', '"')
    return replaced(replaced(plain, f'"{BARE}([^"]*+)"', "$1"), _MARKS, "$1$2 ")


def starts_with(node: Node, start: str) -> Node:
    """Whether a text begins with a mark, or with a bracket."""
    return fn("STARTSWITH", node, text(start))


def is_scalar(found: Node) -> Node:
    """Whether the value that was found is neither an object nor an array."""
    return or_(starts_with(found, BARE), starts_with(found, STRING))


def unmarked(found: Node) -> Node:
    """A scalar that was found, without its mark."""
    return fn("SUBSTRING", found, 2)


def as_json(found: Node) -> Node:
    """The value that was found, as json."""
    bare = unmarked(found)
    return cases(
        (starts_with(found, BARE), bare),
        (starts_with(found, STRING), quoted(bare)),
        otherwise=_container(found),
    )


def json_text(found: Node) -> Node:
    """The value that was found, as text: a string without quotes, null as NULL."""
    return cases(
        (op(found, "=", text(f"{BARE}null")), NULL),
        (is_scalar(found), unmarked(found)),
        otherwise=_container(found),
    )


def quoted(node: Node) -> Node:
    """A text as a JSON string."""
    listed = fn("TO_JSON", array(node))
    return fn("SUBSTRING", listed, 2, op(fn("LENGTH", listed), "-", 2))


def strings_in(marked_array: Node) -> Node:
    """The elements of an array with marks, as a Spark array."""
    return fn("FROM_JSON", marked_array, text("ARRAY<STRING>"))
