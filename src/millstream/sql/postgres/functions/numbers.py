"""Functions of numbers."""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import binary, checked_domain
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import Node, fn, op, when
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import numeric

simple(
    t.DOUBLE,
    "double",
    cbrt="CBRT",
    degrees="DEGREES",
    radians="RADIANS",
    sin="SIN",
    cos="COS",
    tan="TAN",
    cot="COT",
    atan="ATAN",
    sinh="SINH",
    cosh="COSH",
    tanh="TANH",
)
simple(t.DOUBLE, "double double", atan2="ATAN2")
simple(t.DOUBLE, "", pi="PI", random="RAND")


@function("abs", "number")
def _abs(x: Value) -> Value:
    return Value(fn("ABS", x.tree), x.type)


@function("sign", "number")
def _sign(x: Value) -> Value:
    if x.type.name == "numeric":
        return Value(cast(fn("SIGN", x.tree), numeric(1, 0)), numeric(1, 0))
    return Value(cast(fn("SIGN", x.tree), t.DOUBLE), t.DOUBLE)


def _whole(name: str, x: Value) -> Value:
    """CEIL and FLOOR: a numeric for a numeric, a double for everything else."""
    if x.type.name == "numeric":
        result = numeric(x.type.whole_digits + 1, 0)
        return Value(cast(fn(name, x.tree), result), result)
    if x.type.is_integer:
        return Value(cast(x.tree, t.DOUBLE), t.DOUBLE)
    return Value(_cut(name, x.tree), t.DOUBLE)


def _cut(name: str, x: Node) -> Node:
    """CEIL or FLOOR of a double: Spark returns a BIGINT; doubles that do not fit are already whole numbers."""
    return when(op(fn("ABS", x), "<", 2**52), cast(fn(name, x), t.DOUBLE), x)


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
    return Value(fn("RINT", cast(x.tree, t.DOUBLE)), t.DOUBLE)


@function("trunc", "number integer?")
def _trunc(x: Value, places: Value | None = None) -> Value:
    digits = _places(x, places)
    if x.type.is_float or (x.type.is_integer and places is None):
        double = cast(x.tree, t.DOUBLE)
        return Value(when(op(double, "<", 0), _cut("CEIL", double), _cut("FLOOR", double)), t.DOUBLE)
    return _to_scale("TRUNC", x, digits)


def _to_scale(how: str, x: Value, digits: int) -> Value:
    type_ = t.as_numeric(x.type)
    value = cast(x.tree, type_)
    scale = max(0, digits)
    result = numeric(type_.whole_digits + 1 + scale, scale)
    if how == "ROUND":
        return Value(cast(fn("ROUND", value, digits), result), result)
    up, down = fn("CEIL", value, digits), fn("FLOOR", value, digits)
    return Value(cast(when(op(value, "<", 0), up, down), result), result)


@function("mod", "exact exact")
def _mod(x: Value, y: Value) -> Value:
    return binary("%", x, y)


@function("div", "exact exact")
def _div(x: Value, y: Value) -> Value:
    a, b = t.as_numeric(x.type), t.as_numeric(y.type)
    result = numeric(a.whole_digits + b.scale, 0)
    return Value(cast(op(cast(x.tree, a), "DIV", cast(y.tree, b)), result), result)


def _as_double(name: str, x: Value) -> Value:
    if x.type.name == "numeric":
        raise RefusalError(f"{name} of numeric", "cast it to double precision: its digits never end")
    return Value(cast(x.tree, t.DOUBLE), t.DOUBLE)


@function("sqrt", "number")
def _sqrt(x: Value) -> Value:
    d = _as_double("sqrt", x)
    message = "the square root of a negative number"
    return Value(checked_domain(d, op(d.tree, ">=", 0), fn("SQRT", d.tree), message), t.DOUBLE)


@function("exp", "number")
def _exp(x: Value) -> Value:
    return Value(fn("EXP", _as_double("exp", x).tree), t.DOUBLE)


def _logarithm(function: str, d: Value) -> Value:
    message = "the logarithm of a number below zero"
    return Value(checked_domain(d, op(d.tree, ">", 0), fn(function, d.tree), message), t.DOUBLE)


@function("ln", "number")
def _ln(x: Value) -> Value:
    return _logarithm("LN", _as_double("ln", x))


@function("log log10", "number")
def _log(x: Value) -> Value:
    return _logarithm("LOG10", _as_double("log", x))


@function("power pow", "number number")
def power(x: Value, y: Value) -> Value:
    """`power` and `^`."""
    a, b = _as_double("power", x), _as_double("power", y)
    return Value(fn("POWER", a.tree, b.tree), t.DOUBLE)


@function("to_hex", "whole")
def _to_hex(x: Value) -> Value:
    bits: Node = cast(x.tree, t.BIGINT)
    if x.type != t.BIGINT:
        bits = op(bits, "&", 0xFFFFFFFF)
    return Value(fn("LOWER", fn("HEX", bits)), t.TEXT)


@function("gen_random_uuid", "")
def _uuid() -> Value:
    return Value(fn("UUID"), t.TEXT)
