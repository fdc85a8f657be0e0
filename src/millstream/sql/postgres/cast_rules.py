"""The rules of casts from one family of types to another; without a rule there is no such cast."""

from __future__ import annotations

import re
from collections.abc import Callable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.clocks import moment
from millstream.sql.postgres.constants import jsonb_text
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import FALSE, TRUE, Node, cases, fn, in_, is_not_null, op, text, when
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import Type

Rule = Callable[[Value, Type], Node]

_DAY = r"^\s*\d{4}-\d{1,2}-\d{1,2}"
_TIME = r"[ T]\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
DATE = rf"{_DAY}([ T].*)?\s*$"
TIMESTAMP = rf"{_DAY}({_TIME})?\s*$"
TIMESTAMPTZ = rf"{_DAY}({_TIME} ?([+-]\d{{1,2}}(:\d{{2}})?|Z)?)?\s*$"
ZONE = re.compile(r":\d{2}[.\d]* ?([+-]\d{1,2}(:\d{2})?|Z)\s*$")
NO_SECONDS = r"([ T]\d{1,2}:\d{2}) ?((?:[+-]\d{1,2}(?::\d{2})?|Z)\s*)$"
"""A time of hours and minutes before an offset: Spark requires the seconds there."""
_TRUE = [text(word) for word in ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")]
_FALSE = [text(word) for word in ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")]


def family(type_: Type) -> str:
    """The types that are cast alike."""
    if type_.element is not None:
        return "array"
    if type_.is_integer:
        return "integer"
    if type_.is_float:
        return "float"
    return type_.name


def _plain(value: Value, target: Type) -> Node:
    return cast(value.tree, target)


def _same(value: Value, target: Type) -> Node:
    return value.tree


def _text_to_boolean(value: Value, target: Type) -> Node:
    word = fn("LOWER", fn("TRIM", value.tree))
    return cases((in_(word, _TRUE), TRUE), (in_(word, _FALSE), FALSE), otherwise=cast(value.tree, t.BOOLEAN))


def _checked(pattern: str, kind: str) -> Rule:
    def rule(value: Value, target: Type) -> Node:
        message = fn("CONCAT", text(f"no {kind} of the form that is understood: "), value.tree)
        return cast(when(op(value.tree, "RLIKE", text(pattern)), value.tree, message), target)

    return rule


def _clock_to_moment(value: Value, target: Type) -> Node:
    return moment(cast(value.tree, t.TIMESTAMP) if value.type != t.TIMESTAMP else value.tree)


def _text_to_moment(value: Value, target: Type) -> Node:
    """A text with an offset is read with that offset, any other in the session's time zone."""
    checked = _checked(TIMESTAMPTZ, "timestamp")
    full = Value(fn("REGEXP_REPLACE", value.tree, text(NO_SECONDS), text("$1:00$2")), t.TEXT)
    zoned = op(value.tree, "RLIKE", text(ZONE.pattern))
    return when(zoned, checked(full, t.TIMESTAMPTZ), moment(checked(value, t.TIMESTAMP)))


def _float_to_integer(value: Value, target: Type) -> Node:
    return cast(fn("RINT", value.tree), target)


def _numeric_to_integer(value: Value, target: Type) -> Node:
    return cast(fn("ROUND", value.tree, 0), target)


def _float_to_numeric(value: Value, target: Type) -> Node:
    digits = 14 if value.type == t.DOUBLE else 5  # PostgreSQL keeps 15 digits of a double, 6 of a real
    shown = fn("FORMAT_STRING", text(f"%.{digits}e"), cast(value.tree, t.DOUBLE))  # returns the text "null" for NULL
    return cast(when(is_not_null(value.tree), shown), target)


def _numeric_to_text(value: Value, target: Type) -> Node:
    if not value.type.shows_scale:
        raise RefusalError(
            "the text of a numeric without a declared scale", "cast it to numeric(p, s) first, or ROUND it"
        )
    return cast(value.tree, target)


def _integer_to_boolean(value: Value, target: Type) -> Node:
    if value.type != t.INTEGER:
        raise RefusalError(f"a cast from {value.type} to boolean", "compare it with 0")
    return op(value.tree, "<>", 0)


def _boolean_to_integer(value: Value, target: Type) -> Node:
    if target != t.INTEGER:
        raise RefusalError(f"a cast from boolean to {target}", "cast it to integer first")
    return cast(value.tree, target)


def _json_to_jsonb(value: Value, target: Type) -> Node:
    if not isinstance(value.constant, str):
        hint = "build it with the jsonb functions, or take parts of it: ((...)::jsonb) ->> 'key'"
        raise RefusalError("a cast from json to jsonb", hint)
    return text(jsonb_text(value.constant))


def _jsonb_number(value: Value, target: Type) -> Node:
    shown = fn("NULLIF", value.tree, text("null"))
    number = cast(shown, t.numeric(t.MAX_DIGITS, t.DEFAULT_SCALE))
    if target.is_integer:
        return cast(fn("ROUND", number, 0), target)
    return cast(shown if target.is_float else number, target)


def _jsonb_boolean(value: Value, target: Type) -> Node:
    shown = fn("NULLIF", value.tree, text("null"))
    return cases((text("true"), TRUE), (text("false"), FALSE), of=shown, otherwise=cast(shown, t.BOOLEAN))


RULES: dict[tuple[str, str], Rule] = {
    ("integer", "integer"): _plain,
    ("integer", "numeric"): _plain,
    ("integer", "float"): _plain,
    ("integer", "text"): _plain,
    ("integer", "boolean"): _integer_to_boolean,
    ("numeric", "numeric"): _plain,
    ("numeric", "integer"): _numeric_to_integer,
    ("numeric", "float"): _plain,
    ("numeric", "text"): _numeric_to_text,
    ("float", "float"): _plain,
    ("float", "integer"): _float_to_integer,
    ("float", "numeric"): _float_to_numeric,
    ("text", "integer"): _plain,
    ("text", "numeric"): _plain,
    ("text", "float"): _plain,
    ("text", "boolean"): _text_to_boolean,
    ("text", "date"): _checked(DATE, "date"),
    ("text", "timestamp"): _checked(TIMESTAMP, "timestamp"),
    ("text", "timestamptz"): _text_to_moment,
    ("text", "text"): _same,
    ("text", "json"): _same,
    ("text", "jsonb"): _same,
    ("unknown", "text"): _same,
    ("boolean", "text"): _plain,
    ("boolean", "integer"): _boolean_to_integer,
    ("date", "text"): _plain,
    ("date", "timestamp"): _plain,
    ("date", "timestamptz"): _clock_to_moment,
    ("timestamp", "text"): _plain,
    ("timestamp", "date"): _plain,
    ("timestamp", "timestamptz"): _clock_to_moment,
    ("timestamptz", "date"): _plain,
    ("timestamptz", "timestamp"): _plain,
    ("json", "text"): _same,
    ("jsonb", "text"): _same,
    ("uuid", "text"): _same,
    ("time", "text"): _same,
    ("enum", "text"): _same,
    ("opaque", "text"): _same,
    ("json", "jsonb"): _json_to_jsonb,
    ("jsonb", "json"): _same,
    ("jsonb", "integer"): _jsonb_number,
    ("jsonb", "numeric"): _jsonb_number,
    ("jsonb", "float"): _jsonb_number,
    ("jsonb", "boolean"): _jsonb_boolean,
}
HINTS = {
    ("float", "text"): "cast it to numeric(p, s) first: PostgreSQL and Spark print floating-point numbers differently",
    ("timestamptz", "text"): "use (... AT TIME ZONE 'UTC')::text",
    ("text", "interval"): "only literals can be cast to interval",
    ("interval", "text"): "use EXTRACT to get numbers",
}
