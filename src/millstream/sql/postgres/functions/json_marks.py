"""The marks that JSON texts get before Spark reads them, so that it changes nothing.

Spark's own functions read numbers as doubles and take the quotes off strings, so that `1.50`, `"1"` and `true` cannot
be told apart from `1.5`, `1` and `"true"`. Before Spark reads a text, every scalar in it therefore becomes a string
that begins with a mark: one for what had no quotes, another for strings. What is found is then printed as jsonb would
print it.
"""

from __future__ import annotations

import re

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import convert
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.values import ITEM, JsonPlace, Value, text_literal

BARE, STRING = "\ue001", "\ue002"
"""Marks, of the private use area of Unicode."""

STRING_PATTERN = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_VALUES = rf'\G((?:[^"]++|{STRING_PATTERN}\s*+:)*+)"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_SCALARS = rf'\G((?:[^"\w.+-]++|{STRING_PATTERN})*+)([\w.+-]++)'
_MARKS = rf'\G((?:[^,:"]++|{STRING_PATTERN})*+)([,:])'


def root_of(value: Value) -> str:
    """The text of a json value; a text column is taken for one, since that is how they are mirrored."""
    if value.type.name == "unknown":
        value = convert(value, t.JSONB)
    if not value.type.is_json and value.type != t.TEXT:
        raise RefusalError(f"{value.type} where json is needed")
    return value.sql


def marked(text: str) -> str:
    """A JSON text with its marks."""
    return replaced(replaced(text, _VALUES, f'$1"{STRING}$2"'), _SCALARS, f'$1"{BARE}$2"')


def replaced(text: str, pattern: str, new: str) -> str:
    """A text with every match of a pattern replaced."""
    return f"REGEXP_REPLACE({text}, {text_literal(pattern)}, {text_literal(new)})"


def path_text(steps: tuple[str | int, ...]) -> str:
    """Steps as a path of Spark's."""
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


def found_at(root: str, steps: tuple[str | int, ...]) -> str:
    """What is at a path in a text, with its marks."""
    return f"GET_JSON_OBJECT({marked(root)}, {text_literal(path_text(steps))})"


def found_in(place: JsonPlace) -> str:
    """What arrows lead to, with its marks; of a scalar, `-> 0` is the scalar."""
    path, found = place.path, [found_at(place.root, place.path)]
    while path and path[-1] == 0:
        path = path[:-1]
        above = found_at(place.root, path)
        found.append(f"CASE WHEN {is_marked(above, BARE)} OR {is_marked(above, STRING)} THEN {above} END")
    return found[0] if len(found) == 1 else f"COALESCE({', '.join(found)})"


def bound(fragment: str, body: str) -> str:
    """`body` with ITEM standing for the fragment, which is then computed once."""
    return f"GET(TRANSFORM(ARRAY({fragment}), {ITEM} -> {body}), 0)"


def _container(r: str) -> str:
    """An object or array as jsonb prints it."""
    plain = replaced(r, f'"{STRING}', '"')
    return replaced(replaced(plain, f'"{BARE}([^"]*+)"', "$1"), _MARKS, "$1$2 ")


def is_marked(r: str, mark: str) -> str:
    """Whether a text begins with a mark."""
    return f"STARTSWITH({r}, {text_literal(mark)})"


def as_json(r: str) -> str:
    """What was found, as json."""
    text = f"SUBSTRING({r}, 2)"
    return (
        f"CASE WHEN {is_marked(r, BARE)} THEN {text} WHEN {is_marked(r, STRING)} THEN {quoted(text)} "
        f"ELSE {_container(r)} END"
    )


def json_text(r: str) -> str:
    """What was found, as text: a string without quotes, null as NULL."""
    null = f"{r} = {text_literal(BARE + 'null')}"
    scalar = f"{is_marked(r, BARE)} OR {is_marked(r, STRING)}"
    return f"CASE WHEN {null} THEN NULL WHEN {scalar} THEN SUBSTRING({r}, 2) ELSE {_container(r)} END"


def quoted(text: str) -> str:
    """A text as a JSON string."""
    listed = f"TO_JSON(ARRAY({text}))"
    return f"SUBSTRING({listed}, 2, LENGTH({listed}) - 2)"
