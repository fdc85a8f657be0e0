"""Functions of numbers."""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import binary, checked_domain
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import numeric
from millstream.sql.postgres.values import Value, cast

simple(
    t.DOUBLE,
    "double",
    cbrt="CBRT({0})",
    degrees="DEGREES({0})",
    radians="RADIANS({0})",
    sin="SIN({0})",
    cos="COS({0})",
    tan="TAN({0})",
    cot="COT({0})",
    atan="ATAN({0})",
    sinh="SINH({0})",
    cosh="COSH({0})",
    tanh="TANH({0})",
)
simple(t.DOUBLE, "double double", atan2="ATAN2({0}, {1})")
simple(t.DOUBLE, "", pi="PI()", random="RAND()")


@function("abs", "number")
def _abs(x: Value) -> Value:
    return Value(f"ABS({x.sql})", x.type)


@function("sign", "number")
def _sign(x: Value) -> Value:
    if x.type.name == "numeric":
        return Value(f"CAST(SIGN({x.sql}) AS DECIMAL(1, 0))", numeric(1, 0))
    return Value(f"CAST(SIGN({x.sql}) AS DOUBLE)", t.DOUBLE)


def _whole(name: str, x: Value) -> Value:
    """CEIL and FLOOR: a numeric of a numeric, a double of everything else."""
    if x.type.name == "numeric":
        result = numeric(x.type.whole_digits + 1, 0)
        return Value(cast(f"{name}({x.sql})", result), result)
    if x.type.is_integer:
        return Value(cast(x.sql, t.DOUBLE), t.DOUBLE)
    return Value(_cut(name, x.sql), t.DOUBLE)


def _cut(name: str, x: str) -> str:
    """Of doubles: Spark's result is a BIGINT; those that do not fit are whole numbers already."""
    return f"CASE WHEN ABS({x}) < 4503599627370496 THEN CAST({name}({x}) AS DOUBLE) ELSE {x} END"


@function("ceil ceiling", "number")
def _ceil(x: Value) -> Value:
    return _whole("CEIL", x)


@function("floor", "number")
def _floor(x: Value) -> Value:
    return _whole("FLOOR", x)


def _places(x: Value, places: Value | None) -> int:
    if places is None:
        return 0
    if not isinstance(places.constant, int):
        raise RefusalError("rounding to a number of digits that is not a constant")
    if x.type.is_float:
        raise RefusalError("rounding a double precision to digits", "PostgreSQL rounds only numeric: cast it first")
    return places.constant


@function("round", "number integer?")
def _round(x: Value, places: Value | None = None) -> Value:
    digits = _places(x, places)
    if (not x.type.is_float and places is not None) or x.type.name == "numeric":
        return _to_scale("ROUND", x, digits)
    return Value(f"RINT(CAST({x.sql} AS DOUBLE))", t.DOUBLE)


@function("trunc", "number integer?")
def _trunc(x: Value, places: Value | None = None) -> Value:
    digits = _places(x, places)
    if x.type.is_float or (x.type.is_integer and places is None):
        x_ = f"CAST({x.sql} AS DOUBLE)"
        return Value(f"(CASE WHEN {x_} < 0 THEN {_cut('CEIL', x_)} ELSE {_cut('FLOOR', x_)} END)", t.DOUBLE)
    return _to_scale("TRUNC", x, digits)


def _to_scale(how: str, x: Value, digits: int) -> Value:
    type_ = t.as_numeric(x.type)
    value = cast(x.sql, type_)
    scale = max(0, digits)
    result = numeric(type_.whole_digits + 1 + scale, scale)
    if how == "ROUND":
        return Value(cast(f"ROUND({value}, {digits})", result), result)
    up, down = f"CEIL({value}, {digits})", f"FLOOR({value}, {digits})"
    return Value(cast(f"CASE WHEN {value} < 0 THEN {up} ELSE {down} END", result), result)


@function("mod", "exact exact")
def _mod(x: Value, y: Value) -> Value:
    return binary("%", x, y)


@function("div", "exact exact")
def _div(x: Value, y: Value) -> Value:
    a, b = t.as_numeric(x.type), t.as_numeric(y.type)
    result = numeric(a.whole_digits + b.scale, 0)
    return Value(cast(f"({cast(x.sql, a)} DIV {cast(y.sql, b)})", result), result)


def _as_double(name: str, x: Value) -> Value:
    if x.type.name == "numeric":
        raise RefusalError(f"{name} of numeric", "cast it to double precision: its digits have no end")
    return Value(cast(x.sql, t.DOUBLE), t.DOUBLE)


@function("sqrt", "number")
def _sqrt(x: Value) -> Value:
    d = _as_double("sqrt", x)
    return Value(checked_domain(d, f"{d.sql} >= 0", f"SQRT({d.sql})", "the square root of a negative number"), t.DOUBLE)


@function("exp", "number")
def _exp(x: Value) -> Value:
    return Value(f"EXP({_as_double('exp', x).sql})", t.DOUBLE)


@function("ln", "number")
def _ln(x: Value) -> Value:
    d = _as_double("ln", x)
    return Value(checked_domain(d, f"{d.sql} > 0", f"LN({d.sql})", "the logarithm of a number below zero"), t.DOUBLE)


@function("log log10", "number")
def _log(x: Value) -> Value:
    d = _as_double("log", x)
    return Value(checked_domain(d, f"{d.sql} > 0", f"LOG10({d.sql})", "the logarithm of a number below zero"), t.DOUBLE)


@function("power pow", "number number")
def power(x: Value, y: Value) -> Value:
    """`power` and `^`."""
    a, b = _as_double("power", x), _as_double("power", y)
    return Value(f"POWER({a.sql}, {b.sql})", t.DOUBLE)


@function("to_hex", "whole")
def _to_hex(x: Value) -> Value:
    return Value(
        f"LOWER(HEX({cast(x.sql, t.BIGINT)}))"
        if x.type == t.BIGINT
        else f"LOWER(HEX(CAST({x.sql} AS BIGINT) & 4294967295))",
        t.TEXT,
    )


@function("gen_random_uuid", "")
def _uuid() -> Value:
    return Value("UUID()", t.TEXT)
