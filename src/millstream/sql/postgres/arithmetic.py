"""`+ - * / %` over numbers, dates and intervals: the result depends on the types of both operands.

Exact numbers stay exact or fail: where the digits of a result do not fit Spark's 38, the operands are given fewer
digits before the decimal point, and a value that needs more fails at run time; it is never rounded. Division, whose
digits never end, has 16 after the decimal point.
"""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside, coerce
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    ZERO,
    Node,
    extract,
    fn,
    is_null,
    negative,
    number,
    op,
    or_,
    text,
    total,
    whole_number,
)
from millstream.sql.postgres.spark_casts import cast, fail_unless
from millstream.sql.postgres.typed_expressions import Interval, Value, interval
from millstream.sql.postgres.types import MAX_DIGITS, Type, as_numeric, numeric

DIVISION_SCALE = 16


def binary(operator: str, left: Value, right: Value) -> Value:
    """One of `+ - * / %`."""
    left, right = _resolved(operator, left, right)
    if left.type.is_number and right.type.is_number:
        return _numbers(operator, left, right)
    if left.type.is_time or right.type.is_time or t.INTERVAL in (left.type, right.type):
        return _times(operator, left, right)
    raise _no_operator(operator, left, right)


def negate(value: Value) -> Value:
    """`- x`."""
    if value.interval is not None:
        return _scaled(value.interval, number(-1))
    if not value.type.is_number:
        raise RefusalError(f"- {value.type}")
    constant = -value.constant if isinstance(value.constant, int) else None
    return Value(negative(value.tree), value.type, constant=constant)


def widen(value: Value, type_: Type) -> Node:
    """The expression, cast to a type unless it already has it."""
    return value.tree if value.type == type_ else cast(value.tree, type_)


def divide(left: Node, left_type: Type, right: Node, right_type: Type) -> Value:
    """The quotient of two numerics, with 16 digits after the decimal point, or more if an operand has more."""
    scale = max(DIVISION_SCALE, left_type.scale, right_type.scale)
    whole = min(left_type.whole_digits, MAX_DIGITS - scale - right_type.scale)
    if whole < 1:
        raise RefusalError(
            "a division of numerics with so many digits", "cast the operands to numeric(p, s) with fewer"
        )
    fraction = max(left_type.scale, scale - right_type.digits - 1)
    dividend = cast(left, numeric(whole + fraction, fraction))
    result = numeric(MAX_DIGITS, scale, shows_scale=False)
    return Value(cast(op(dividend, "/", right), result), result)


def _resolved(operator: str, left: Value, right: Value) -> tuple[Value, Value]:
    """A literal takes the type of the other side; next to a date or timestamp it may be an interval instead."""
    for one, other, swap in ((left, right, False), (right, left, True)):
        if one.type.name == "unknown" and other.type.name != "unknown":
            target = other.type
            if other.type.is_time and operator in "+-" and not (operator == "-" and other.type != t.INTERVAL):
                target = t.INTERVAL
            read = beside(one, target) if target.name == "numeric" else coerce(one, target)
            return (other, read) if swap else (read, other)
    return left, right


def _numbers(operator: str, left: Value, right: Value) -> Value:
    if left.type.is_float or right.type.is_float:
        type_ = t.REAL if left.type == right.type == t.REAL else t.DOUBLE
        if operator == "%":
            raise _no_operator(operator, left, right)
        return Value(op(widen(left, type_), operator, widen(right, type_)), type_)
    if left.type.is_integer and right.type.is_integer:
        type_ = max((left.type, right.type), key=lambda x: t.INTEGERS[x.name])
        a, b = widen(left, type_), widen(right, type_)
        if operator == "/":
            return Value(cast(op(a, "DIV", b), type_), type_)
        return Value(op(a, operator, b), type_)
    return _numerics(operator, left, right)


def _numerics(operator: str, left: Value, right: Value) -> Value:
    a, b = as_numeric(left.type), as_numeric(right.type)
    if operator == "/":
        return divide(widen(left, a), a, widen(right, b), b)
    shows = a.shows_scale and b.shows_scale
    if operator == "*":
        scale, room = a.scale + b.scale, MAX_DIGITS - 1 - a.scale - b.scale
        if room < 2:
            raise RefusalError(
                "a product with so many digits after the decimal point", "ROUND or cast the operands first"
            )
        small = min(a.whole_digits, b.whole_digits, room // 2)
        a_whole = small if a.whole_digits <= b.whole_digits else min(a.whole_digits, room - small)
        b_whole = small if a.whole_digits > b.whole_digits else min(b.whole_digits, room - small)
        a, b = numeric(a_whole + a.scale, a.scale), numeric(b_whole + b.scale, b.scale)
        result = numeric(a.digits + b.digits + 1, scale, shows_scale=shows)
        return Value(op(_narrowed(left, a), "*", _narrowed(right, b)), result)
    scale = max(a.scale, b.scale)
    whole = min(max(a.whole_digits, b.whole_digits), MAX_DIGITS - 1 - scale)
    common = numeric(whole + scale, scale)
    extra = 0 if operator == "%" else 1
    result = numeric(whole + scale + extra, scale, shows_scale=shows)
    return Value(cast(op(_narrowed(left, common), operator, _narrowed(right, common)), result), result)


def _narrowed(value: Value, type_: Type) -> Node:
    same = value.type.name == "numeric" and (value.type.digits, value.type.scale) == (type_.digits, type_.scale)
    return value.tree if same else cast(value.tree, type_)


# Dates and intervals


def _times(operator: str, left: Value, right: Value) -> Value:
    match left.type.name, operator, right.type.name:
        case "date", "+", "smallint" | "integer":
            return Value(fn("DATE_ADD", left.tree, right.tree), t.DATE)
        case "smallint" | "integer", "+", "date":
            return Value(fn("DATE_ADD", right.tree, left.tree), t.DATE)
        case "date", "-", "smallint" | "integer":
            return Value(fn("DATE_ADD", left.tree, negative(right.tree)), t.DATE)
        case "date", "-", "date":
            return Value(fn("DATEDIFF", left.tree, right.tree), t.INTEGER)
        case "date" | "timestamp" | "timestamptz", "-", "date" | "timestamp" | "timestamptz":
            return _elapsed(left, right)
        case "date" | "timestamp" | "timestamptz", "+" | "-", "interval":
            assert right.interval is not None
            return shifted(left, right.interval if operator == "+" else _opposite(right.interval))
        case "interval", "+", "date" | "timestamp" | "timestamptz":
            assert left.interval is not None
            return shifted(right, left.interval)
        case "interval", "+" | "-", "interval":
            assert left.interval is not None
            assert right.interval is not None
            return _joined(operator, left.interval, right.interval)
        case "interval", "*", "smallint" | "integer" | "bigint":
            assert left.interval is not None
            return _scaled(left.interval, right.tree)
        case "smallint" | "integer" | "bigint", "*", "interval":
            assert right.interval is not None
            return _scaled(right.interval, left.tree)
    raise _no_operator(operator, left, right)


def shifted(value: Value, by: Interval) -> Value:
    """A date or timestamp plus an interval: months first (the day is cut to the month's end), then days, then time."""
    type_ = t.TIMESTAMPTZ if value.type == t.TIMESTAMPTZ else t.TIMESTAMP
    start = widen(value, type_)
    parts = (by.months, by.days, by.micros)
    if all(_is_zero(part) for part in parts):
        return Value(start, type_)
    months, days = (part if _is_zero(part) else cast(part, t.INTEGER) for part in (by.months, by.days))
    seconds: Node = ZERO
    if not _is_zero(by.micros):
        seconds = cast(op(cast(by.micros, numeric(18, 0)), "/", 1_000_000), numeric(18, 6))
    return Value(op(start, "+", fn("MAKE_INTERVAL", 0, months, 0, days, 0, 0, seconds)), type_)


def _elapsed(left: Value, right: Value) -> Value:
    """Days and time between two timestamps."""
    type_ = t.TIMESTAMPTZ if t.TIMESTAMPTZ in (left.type, right.type) else t.TIMESTAMP
    micros = op(micros_of(widen(left, type_), type_), "-", micros_of(widen(right, type_), type_))
    return interval(ZERO, op(micros, "DIV", 86_400_000_000), op(micros, "%", 86_400_000_000))


def micros_of(node: Node, type_: Type) -> Node:
    """Microseconds since 1970: of a local timestamp in local time, of a `timestamptz` in UTC."""
    if type_ == t.TIMESTAMPTZ:
        return fn("UNIX_MICROS", node)
    days = cast(fn("DATEDIFF", cast(node, t.DATE), cast(text("1970-01-01"), t.DATE)), t.BIGINT)
    seconds = cast(op(op(fn("HOUR", node), "*", 3600), "+", op(fn("MINUTE", node), "*", 60)), t.BIGINT)
    micros = cast(op(extract("SECOND", node), "*", 1_000_000), t.BIGINT)
    return total([op(days, "*", 86_400_000_000), op(seconds, "*", 1_000_000), micros])


def _opposite(one: Interval) -> Interval:
    scaled = _scaled(one, number(-1)).interval
    assert scaled is not None
    return scaled


def _scaled(one: Interval, factor: Node) -> Value:
    return interval(*(_product(part, factor) for part in (one.months, one.days, one.micros)))


def _product(part: Node, factor: Node) -> Node:
    known, by = whole_number(part), whole_number(factor)
    if known == 0:
        return ZERO
    if known is not None and by is not None:
        return number(known * by)
    return op(cast(part, t.BIGINT), "*", factor)


def _joined(operator: str, one: Interval, two: Interval) -> Value:
    pairs = ((one.months, two.months), (one.days, two.days), (one.micros, two.micros))
    return interval(*(a if _is_zero(b) else op(a, operator, b) for a, b in pairs))


def _is_zero(part: Node) -> bool:
    return whole_number(part) == 0


def _no_operator(operator: str, left: Value, right: Value) -> RefusalError:
    return RefusalError(f"{left.type} {operator} {right.type}", "cast the operands to types the operator is for")


def checked_domain(value: Value, condition: Node, result: Node, message: str) -> Node:
    """A function of a double that fails outside its domain, as in PostgreSQL; Spark would return NULL or NaN."""
    return fail_unless(or_(condition, is_null(value.tree)), result, message, cast(value.tree, t.TEXT))
