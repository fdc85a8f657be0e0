"""Casts: `::`, CAST, and what literals become when a context gives them a type."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.clocks import moment
from millstream.sql.postgres.constants import check_json, jsonb_text, parse_array, parse_interval, time_text, uuid_text
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import Type
from millstream.sql.postgres.values import ITEM, NULL, Value, cast, interval, numeric_literal, text_literal

_DATE = r"^\\s*\\d{4}-\\d{1,2}-\\d{1,2}([ T].*)?\\s*$"
_TIME = r"[ T]\\d{1,2}:\\d{2}(:\\d{2}(\\.\\d{1,6})?)?"
_TIMESTAMP = rf"^\\s*\\d{{4}}-\\d{{1,2}}-\\d{{1,2}}({_TIME})?\\s*$"
_TIMESTAMPTZ = rf"^\\s*\\d{{4}}-\\d{{1,2}}-\\d{{1,2}}({_TIME} ?([+-]\\d{{1,2}}(:\\d{{2}})?|Z)?)?\\s*$"
_LITERALS = {"date": _DATE, "timestamp": _TIMESTAMP, "timestamptz": _TIMESTAMPTZ}
_ZONE = re.compile(r":\d{2}[.\d]* ?([+-]\d{1,2}(:\d{2})?|Z)\s*$")
_NO_SECONDS = r"([ T]\d{1,2}:\d{2}) ?((?:[+-]\d{1,2}(?::\d{2})?|Z)\s*)$"
_TRUE = "'t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1'"
_FALSE = "'f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0'"


def type_named(node: exp.DataType) -> Type:
    """The type a cast names."""
    sizes = [int(p.name) for p in node.expressions if isinstance(p, exp.DataTypeParam) and p.name.isdigit()]
    kind = node.this
    if kind is exp.DType.ARRAY and len(node.expressions) == 1:
        inner = node.expressions[0]
        if inner.this is exp.DType.VARCHAR and inner.expressions:
            raise RefusalError(f"the type {node.sql(dialect='postgres')}", "cast it to text[], and cut its elements")
        return t.array_of(type_named(inner))
    if kind is exp.DType.DECIMAL:
        if not sizes:
            return t.UNBOUNDED
        if sizes[0] > t.MAX_DIGITS:
            raise RefusalError(f"a numeric of {sizes[0]} digits", f"Spark's DECIMAL has {t.MAX_DIGITS}")
        if len(sizes) > 1 and sizes[1] > sizes[0]:
            raise RefusalError(f"the type {node.sql(dialect='postgres')}", "its scale cannot exceed its precision here")
        return t.numeric(sizes[0], sizes[1] if len(sizes) > 1 else 0)
    found = _TYPES.get(kind) if isinstance(kind, exp.DType) else None
    if found is None or (sizes and kind is not exp.DType.VARCHAR):
        raise RefusalError(f"the type {node.sql(dialect='postgres')}", _TYPE_HINTS.get(kind))
    return found


_TYPES = {
    exp.DType.SMALLINT: t.SMALLINT,
    exp.DType.INT: t.INTEGER,
    exp.DType.BIGINT: t.BIGINT,
    exp.DType.FLOAT: t.REAL,
    exp.DType.DOUBLE: t.DOUBLE,
    exp.DType.TEXT: t.TEXT,
    exp.DType.VARCHAR: t.TEXT,
    exp.DType.BOOLEAN: t.BOOLEAN,
    exp.DType.DATE: t.DATE,
    exp.DType.TIMESTAMP: t.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: t.TIMESTAMP,
    exp.DType.TIMESTAMPTZ: t.TIMESTAMPTZ,
    exp.DType.INTERVAL: t.INTERVAL,
    exp.DType.JSON: t.JSON,
    exp.DType.JSONB: t.JSONB,
}
_TYPE_HINTS: dict[object, str] = {
    exp.DType.CHAR: "use varchar(n) or text: char(n) pads with spaces and ignores them in comparisons",
    exp.DType.UUID: "compare uuids as text",
    exp.DType.TIME: "use a timestamp, or EXTRACT",
}


def convert(value: Value, target: Type) -> Value:
    """An explicit cast.

    Raises:
        RefusalError: PostgreSQL has no such cast, or Spark no equal of it.
    """
    source = value.type
    if value.is_null:
        return Value(cast("NULL", target), target) if target != t.INTERVAL else interval("NULL", "NULL", "NULL")
    if source.name == "unknown" and isinstance(value.constant, str):
        return _read(value, target)
    if source == target and source.name != "numeric":
        return value
    rule = _RULES.get((_family(source), _family(target)))
    if rule is None:
        raise RefusalError(f"a cast from {source} to {target}", _CAST_HINTS.get((_family(source), _family(target))))
    return Value(rule(value, target), target)


def shorten(value: Value, length: int) -> Value:
    """`::varchar(n)` cuts."""
    return Value(f"SUBSTRING({value.sql}, 1, {length})", t.TEXT)


def as_text(value: Value) -> Value:
    """What `||` and the functions of strings make of their operands."""
    return convert(value, t.TEXT)


def coerce(value: Value, target: Type) -> Value:
    """An implicit cast: of a literal, or to a wider type of the same kind."""
    if value.type.name == "unknown" or value.is_null:
        return convert(value, target)
    if value.type == target or (value.type.name == "numeric" and target.name == "numeric" and target.digits == 0):
        return value
    if value.type.name == target.name == "numeric":
        alike = value.type.spark == target.spark
        return value.of(target) if alike else Value(cast(value.sql, target), target)
    widens = t.common([value.type, target]) == target
    if not widens and not (value.type.is_json and target.is_json):
        raise RefusalError(f"{value.type} where {target} is needed", f"cast it: (...)::{target}")
    return convert(value, target)


def unify(values: list[Value]) -> tuple[list[Value], Type]:
    """Values of one type, as CASE, COALESCE and ARRAY[...] need them."""
    target = t.common([v.type for v in values])
    if target is not None:
        values = [beside(v, target) for v in values]
        target = t.common([v.type for v in values])
    if target is None:
        names = ", ".join(dict.fromkeys(str(v.type) for v in values))
        raise RefusalError(f"mixing {names}", "cast them to one type")
    if target.name == "interval":
        raise RefusalError("an interval in this place", "use EXTRACT(EPOCH FROM ...) to get a number")
    return [coerce(v, target) for v in values], target


def compared(left: Value, right: Value) -> tuple[list[Value], Type]:
    """Both sides of a comparison in one type: there, a real meets other numbers in double precision."""
    kinds = {left.type, right.type}
    if t.REAL in kinds and len(kinds) > 1 and all(k.is_number for k in kinds):
        return [coerce(v, t.DOUBLE) for v in (left, right)], t.DOUBLE
    return unify([left, right])


def beside(value: Value, other: Type) -> Value:
    """A literal next to a numeric is one with the digits it has; they are not rounded to the other's scale."""
    if value.type.name != "unknown" or not isinstance(value.constant, str):
        return value
    if other.name == "numeric":
        return _numeric(value.constant)
    if other.element is not None and other.element.name == "numeric":
        items = [_numeric(item) if item is not None else NULL for item in parse_array(value.constant)]
        found, element = unify(items) if any(not i.is_null for i in items) else (items, other.element)
        type_ = t.array_of(element)
        return Value(cast(f"ARRAY({', '.join(i.sql for i in found)})", type_), type_)
    return value


def _numeric(text: str) -> Value:
    found = numeric_literal(text)
    if found is None:
        raise RefusalError(f"the numeric {text!r}", f"Spark's DECIMAL has {t.MAX_DIGITS} digits, and no NaN")
    return found


def _read(value: Value, target: Type) -> Value:
    """A literal as a constant of a type."""
    text = str(value.constant)
    if target.element is not None:
        items = [
            convert(Value(text_literal(item), t.UNKNOWN, constant=item), target.element)
            if item is not None
            else Value(cast("NULL", target.element), target.element)
            for item in parse_array(text)
        ]
        return Value(cast(f"ARRAY({', '.join(i.sql for i in items)})", target), target)
    match target.name:
        case "text":
            return Value(value.sql, t.TEXT, constant=text)
        case "interval":
            months, days, micros = parse_interval(text)
            return interval(str(months), str(days), str(micros))
        case "jsonb":
            return Value(text_literal(jsonb_text(text)), t.JSONB)
        case "uuid":
            return Value(text_literal(uuid_text(text)), t.UUID)
        case "time":
            return Value(text_literal(time_text(text)), t.TIME)
        case "enum":
            return Value(value.sql, target)
        case "json":
            return Value(text_literal(check_json(text)), t.JSON, constant=text)
        case "smallint" | "integer" | "bigint" if re.fullmatch(r"\s*[+-]?\d+\s*", text):
            return Value(cast(text_literal(text.strip()), target), target, constant=int(text))
        case "numeric":
            read = _numeric(text)
            return read if target == t.UNBOUNDED else Value(cast(read.sql, target), target)
        case "date" | "timestamp" | "timestamptz":
            if not re.match(_LITERALS[target.name].replace("\\\\", "\\"), text):
                raise RefusalError(f"the {target} {text!r}", "write it as 2024-12-31 or 2024-12-31 23:59:59")
            if target == t.TIMESTAMPTZ:
                bare = cast(text_literal(re.sub(_NO_SECONDS, r"\1:00\2", text.strip())), target)
                return Value(
                    bare if _ZONE.search(text) else moment(cast(text_literal(text.strip()), t.TIMESTAMP)), target
                )
            return Value(cast(text_literal(text.strip()), target), target)
    rule = _RULES.get(("text", _family(target)))
    if rule is None:
        raise RefusalError(f"a literal of type {target}")
    return Value(rule(value.of(t.TEXT), target), target)


def _family(type_: Type) -> str:
    if type_.element is not None:
        return "array"
    if type_.is_integer:
        return "integer"
    if type_.is_float:
        return "float"
    return type_.name


def _plain(value: Value, target: Type) -> str:
    return cast(value.sql, target)


def _same(value: Value, target: Type) -> str:
    return value.sql


def _text_to_boolean(value: Value, target: Type) -> str:
    word = f"LOWER(TRIM({value.sql}))"
    return (
        f"CASE WHEN {word} IN ({_TRUE}) THEN TRUE WHEN {word} IN ({_FALSE}) THEN FALSE "
        f"ELSE CAST({value.sql} AS BOOLEAN) END"
    )


def _checked(pattern: str, kind: str) -> Callable[[Value, Type], str]:
    def rule(value: Value, target: Type) -> str:
        said = f"CONCAT('no {kind} of the form that is understood: ', {value.sql})"
        return cast(f"CASE WHEN {value.sql} RLIKE '{pattern}' THEN {value.sql} ELSE {said} END", target)

    return rule


def _clock_to_moment(value: Value, target: Type) -> str:
    return moment(cast(value.sql, t.TIMESTAMP) if value.type != t.TIMESTAMP else value.sql)


def _text_to_moment(value: Value, target: Type) -> str:
    """By its own offset, or else on the session's clock."""
    checked = _checked(_TIMESTAMPTZ, "timestamp")
    # Spark wants the seconds before an offset
    text = Value(f"REGEXP_REPLACE({value.sql}, {text_literal(_NO_SECONDS)}, '$1:00$2')", t.TEXT)
    zoned = f"{value.sql} RLIKE {text_literal(_ZONE.pattern)}"
    return f"CASE WHEN {zoned} THEN {checked(text, t.TIMESTAMPTZ)} ELSE {moment(checked(value, t.TIMESTAMP))} END"


def _float_to_integer(value: Value, target: Type) -> str:
    return cast(f"RINT({value.sql})", target)


def _numeric_to_integer(value: Value, target: Type) -> str:
    return cast(f"ROUND({value.sql}, 0)", target)


def _float_to_numeric(value: Value, target: Type) -> str:
    digits = 14 if value.type == t.DOUBLE else 5  # PostgreSQL keeps 15 digits of a double, 6 of a real
    text = f"FORMAT_STRING('%.{digits}e', CAST({value.sql} AS DOUBLE))"  # of NULL, the text null
    return cast(f"CASE WHEN {value.sql} IS NOT NULL THEN {text} END", target)


def _numeric_to_text(value: Value, target: Type) -> str:
    if not value.type.shows_scale:
        raise RefusalError(
            "the text of a numeric without a declared scale", "cast it to numeric(p, s) first, or ROUND it"
        )
    return cast(value.sql, target)


def _integer_to_boolean(value: Value, target: Type) -> str:
    if value.type != t.INTEGER:
        raise RefusalError(f"a cast from {value.type} to boolean", "compare it with 0")
    return f"({value.sql} <> 0)"


def _boolean_to_integer(value: Value, target: Type) -> str:
    if target != t.INTEGER:
        raise RefusalError(f"a cast from boolean to {target}", "cast it to integer first")
    return cast(value.sql, target)


def _json_to_jsonb(value: Value, target: Type) -> str:
    if not isinstance(value.constant, str):
        hint = "build it with the functions of jsonb, or take parts of it: ((...)::jsonb) ->> 'key'"
        raise RefusalError("a cast from json to jsonb", hint)
    return text_literal(jsonb_text(value.constant))


def _jsonb_number(value: Value, target: Type) -> str:
    text = f"NULLIF({value.sql}, 'null')"
    number = cast(text, t.numeric(t.MAX_DIGITS, t.DEFAULT_SCALE))
    if target.is_integer:
        return cast(f"ROUND({number}, 0)", target)
    return cast(text if target.is_float else number, target)


def _jsonb_boolean(value: Value, target: Type) -> str:
    text = f"NULLIF({value.sql}, 'null')"
    return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE ELSE CAST({text} AS BOOLEAN) END"


def _each(value: Value, target: Type) -> str:
    assert value.type.element is not None
    assert target.element is not None
    item = convert(Value(ITEM, value.type.element), target.element)
    return f"TRANSFORM({value.sql}, {ITEM} -> {item.sql})"


_RULES: dict[tuple[str, str], Callable[[Value, Type], str]] = {
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
    ("text", "date"): _checked(_DATE, "date"),
    ("text", "timestamp"): _checked(_TIMESTAMP, "timestamp"),
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
    ("array", "array"): _each,
}
_CAST_HINTS = {
    ("float", "text"): "cast it to numeric(p, s) first: PostgreSQL and Spark print floating-point numbers differently",
    ("timestamptz", "text"): "use (... AT TIME ZONE 'UTC')::text",
    ("text", "interval"): "only literals can be cast to interval",
    ("interval", "text"): "use EXTRACT to get numbers",
}
