"""Casts: `::`, CAST, and what literals become when a context gives them a type."""

from __future__ import annotations

import re

from millstream.sql.postgres import cast_rules
from millstream.sql.postgres import types as t
from millstream.sql.postgres.cast_rules import family
from millstream.sql.postgres.clocks import moment
from millstream.sql.postgres.constants import check_json, jsonb_text, parse_array, parse_interval, time_text, uuid_text
from millstream.sql.postgres.literals import numeric_literal, unknown_literal
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import ITEM, NULL, array, each, fn, text
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import NULL_VALUE, Value, constant_interval, interval
from millstream.sql.postgres.types import Type

_LITERALS = {"date": cast_rules.DATE, "timestamp": cast_rules.TIMESTAMP, "timestamptz": cast_rules.TIMESTAMPTZ}


def convert(value: Value, target: Type) -> Value:
    """An explicit cast.

    Raises:
        RefusalError: PostgreSQL has no such cast, or Spark has no equivalent.
    """
    source = value.type
    if value.is_null:
        return null_of(target) if target != t.INTERVAL else interval(NULL, NULL, NULL)
    if source.name == "unknown" and isinstance(value.constant, str):
        return _read(value, target)
    if source == target and source.name != "numeric":
        return value
    families = family(source), family(target)
    if families == ("array", "array"):
        return _each(value, target)
    rule = cast_rules.RULES.get(families)
    if rule is None:
        raise RefusalError(f"a cast from {source} to {target}", cast_rules.HINTS.get(families))
    return Value(rule(value, target), target)


def null_of(type_: Type) -> Value:
    """A NULL of a type."""
    return Value(cast(NULL, type_), type_)


def _each(value: Value, target: Type) -> Value:
    assert value.type.element is not None
    assert target.element is not None
    item = convert(Value(ITEM, value.type.element), target.element)
    return Value(each(value.tree, item.tree), target)


def shorten(value: Value, length: int) -> Value:
    """`::varchar(n)` truncates."""
    return Value(fn("SUBSTRING", value.tree, 1, length), t.TEXT)


def as_text(value: Value) -> Value:
    """The text that `||` and string functions use for an operand."""
    return convert(value, t.TEXT)


def coerce(value: Value, target: Type) -> Value:
    """An implicit cast: of a literal, or to a wider type of the same kind."""
    if value.type.name == "unknown" or value.is_null:
        return convert(value, target)
    if value.type == target or (value.type.name == "numeric" and target.name == "numeric" and target.digits == 0):
        return value
    if value.type.name == target.name == "numeric":
        alike = value.type.spark == target.spark
        return value.of(target) if alike else Value(cast(value.tree, target), target)
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
    """Both sides of a comparison in one type: a real is compared with other numbers in double precision."""
    kinds = {left.type, right.type}
    if t.REAL in kinds and len(kinds) > 1 and all(k.is_number for k in kinds):
        return [coerce(v, t.DOUBLE) for v in (left, right)], t.DOUBLE
    return unify([left, right])


def beside(value: Value, other: Type) -> Value:
    """A literal next to a numeric becomes a numeric with its own digits, not rounded to the other's scale."""
    if value.type.name != "unknown" or not isinstance(value.constant, str):
        return value
    if other.name == "numeric":
        return _numeric(value.constant)
    if other.element is not None and other.element.name == "numeric":
        items = [_numeric(item) if item is not None else NULL_VALUE for item in parse_array(value.constant)]
        found, element = unify(items) if any(not i.is_null for i in items) else (items, other.element)
        type_ = t.array_of(element)
        return Value(cast(array(*(i.tree for i in found)), type_), type_)
    return value


def _numeric(written: str) -> Value:
    found = numeric_literal(written)
    if found is None:
        raise RefusalError(f"the numeric {written!r}", f"Spark's DECIMAL has {t.MAX_DIGITS} digits, and no NaN")
    return found


def _read(value: Value, target: Type) -> Value:
    """A literal as a constant of a type."""
    written = str(value.constant)
    if target.element is not None:
        items = [
            convert(unknown_literal(item), target.element) if item is not None else null_of(target.element)
            for item in parse_array(written)
        ]
        return Value(cast(array(*(i.tree for i in items)), target), target)
    match target.name:
        case "text":
            return Value(value.tree, t.TEXT, constant=written)
        case "interval":
            return constant_interval(parse_interval(written))
        case "jsonb":
            return Value(text(jsonb_text(written)), t.JSONB)
        case "uuid":
            return Value(text(uuid_text(written)), t.UUID)
        case "time":
            return Value(text(time_text(written)), t.TIME)
        case "enum":
            return Value(value.tree, target)
        case "json":
            return Value(text(check_json(written)), t.JSON, constant=written)
        case "smallint" | "integer" | "bigint" if re.fullmatch(r"\s*[+-]?\d+\s*", written):
            return Value(cast(text(written.strip()), target), target, constant=int(written))
        case "numeric":
            read = _numeric(written)
            return read if target == t.UNBOUNDED else Value(cast(read.tree, target), target)
        case "date" | "timestamp" | "timestamptz":
            return _read_time(written, target)
    rule = cast_rules.RULES.get(("text", family(target)))
    if rule is None:
        raise RefusalError(f"a literal of type {target}")
    return Value(rule(value.of(t.TEXT), target), target)


def _read_time(written: str, target: Type) -> Value:
    if not re.match(_LITERALS[target.name], written):
        raise RefusalError(f"the {target} {written!r}", "write it as 2024-12-31 or 2024-12-31 23:59:59")
    if target != t.TIMESTAMPTZ:
        return Value(cast(text(written.strip()), target), target)
    if cast_rules.ZONE.search(written):
        full = re.sub(cast_rules.NO_SECONDS, r"\1:00\2", written.strip())
        return Value(cast(text(full), target), target)
    return Value(moment(cast(text(written.strip()), t.TIMESTAMP)), target)
