"""Fragments of Spark's SQL with their PostgreSQL type.

Every fragment can be an operand of anything: it is a call, a name, a literal, or stands in parentheses. What the user
wrote enters a fragment only as a number, through `text_literal` or through `quote`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from millstream.sql.postgres.types import BIGINT, INTEGER, INTERVAL, MAX_DIGITS, UNKNOWN, Type, numeric


@dataclass(frozen=True, slots=True)
class Interval:
    """PostgreSQL's interval: three numbers that are added one after the other, as fragments."""

    months: str = "0"
    days: str = "0"
    micros: str = "0"

    @property
    def span(self) -> str:
        """What intervals are compared by: a month of 30 days, a day of 24 hours; in microseconds."""
        days = f"(CAST({self.months} AS DECIMAL(20, 0)) * 30 + {self.days})"
        return f"({days} * CAST(86400000000 AS DECIMAL(12, 0)) + {self.micros})"


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A place inside of a JSON text: found in one go, however many arrows lead there."""

    root: str
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A fragment and its type.

    Args:
        constant: the text of a literal, the number of a whole one; what needs a constant looks here.
        interval: an interval has no fragment of its own.
        place: of a json value that was found by arrows.
        items: of a row constructor.
    """

    sql: str
    type: Type
    constant: str | int | None = None
    interval: Interval | None = None
    place: JsonPlace | None = None
    items: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        """The literal NULL."""
        return self.sql == "NULL"

    def of(self, type_: Type) -> Value:
        """The same fragment by another type."""
        return replace(self, type=type_)


NULL = Value("NULL", UNKNOWN)
ITEM, OTHER, PLACE = "__ms_e", "__ms_f", "__ms_i"
"""Variables of lambdas: a table or column of the user's may be called anything that does not begin like this."""


def text_literal(text: str) -> str:
    """A string as Spark reads it.

    >>> text_literal("it's a \\\\ b")
    "'it\\\\'s a \\\\\\\\ b'"
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def unknown_literal(text: str) -> Value:
    """A string literal, of no type yet."""
    return Value(text_literal(text), UNKNOWN, constant=text)


def number_literal(text: str) -> Value | None:
    """A number: integer, bigint or numeric, by its size; None where Spark's DECIMAL cannot hold it."""
    number = _digits(text)
    if number is None:
        return None
    whole, fraction = number
    if text.isdigit():
        value = int(whole or "0")
        if value < 2**31:
            return Value(str(value), INTEGER, constant=value)
        if value < 2**63:
            return Value(f"CAST({value} AS BIGINT)", BIGINT, constant=value)
    if len(whole) + len(fraction) > MAX_DIGITS:
        return None
    type_ = numeric(max(1, len(whole) + len(fraction)), len(fraction))
    if fraction:
        return Value(f"{whole or '0'}.{fraction}", type_)
    return Value(f"CAST('{whole or '0'}' AS {type_.spark})", type_)


def numeric_literal(text: str) -> Value | None:
    """A quoted number as a numeric of just the digits it has; None where it is none, or Spark's DECIMAL is too small.

    >>> numeric_literal(" -12.50 ").sql, numeric_literal("1e3").sql, numeric_literal("NaN")
    ("CAST('-12.50' AS DECIMAL(4, 2))", "CAST('1000' AS DECIMAL(4, 0))", None)
    """
    found = re.fullmatch(r"\s*([+-]?)((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*", text, re.IGNORECASE | re.ASCII)
    number = _digits(found.group(2)) if found else None
    if found is None or number is None or len(number[0]) + len(number[1]) > MAX_DIGITS:
        return None
    whole, fraction = number
    type_ = numeric(max(1, len(whole) + len(fraction)), len(fraction))
    sign = found.group(1).replace("+", "")
    shown = f"{sign}{whole or '0'}{'.' if fraction else ''}{fraction}"
    return Value(cast(text_literal(shown), type_), type_)


def _digits(text: str) -> tuple[str, str] | None:
    """A number's digits before the point and behind it; None where there are far too many."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    if exponent:
        shift = int(exponent)
        if abs(shift) > 2 * MAX_DIGITS:
            return None
        digits = whole + fraction
        point = len(whole) + shift
        digits = digits.rjust(len(digits) + max(0, -point), "0").ljust(max(point, 0), "0")
        point = max(point, 0)
        whole, fraction = digits[:point], digits[point:]
    return whole.lstrip("0"), fraction


def interval(months: str = "0", days: str = "0", micros: str = "0") -> Value:
    """An interval of three fragments."""
    return Value("", INTERVAL, interval=Interval(months, days, micros))


def cast(sql: str, type_: Type) -> str:
    """A cast that Spark does, where it means what PostgreSQL means."""
    return f"CAST({sql} AS {type_.spark})"


def at_least(sql: str, bound: str) -> str:
    """The value, or the bound if it is below that; NULL of NULL, where GREATEST would give the bound."""
    if sql.isdigit() and bound.isdigit():
        return str(max(int(sql), int(bound)))
    return f"CASE WHEN {sql} < {bound} THEN {bound} ELSE {sql} END"


def at_most(sql: str, bound: str) -> str:
    """The value, or the bound if it is above that; NULL of NULL, where LEAST would give the bound."""
    return f"CASE WHEN {sql} > {bound} THEN {bound} ELSE {sql} END"


def fail_unless(condition: str, result: str, message: str, seen: str) -> str:
    """`result`, or an error of the query's run that shows `message` and the value `seen`."""
    broken = f"CAST(CONCAT({text_literal(message + ': ')}, {seen}) AS INT)"
    return f"CASE WHEN {condition} THEN {result} WHEN {broken} IS NULL THEN NULL END"
