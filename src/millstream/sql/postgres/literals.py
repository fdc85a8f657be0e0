"""Literals of the query: strings, which have no type at first, and numbers, whose size determines their type."""

from __future__ import annotations

import re

from millstream.sql.postgres.spark_builders import number, text
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import BIGINT, INTEGER, MAX_DIGITS, UNKNOWN, numeric


def unknown_literal(value: str) -> Value:
    """A string literal, which has no type yet."""
    return Value(text(value), UNKNOWN, constant=value)


def number_literal(written: str) -> Value | None:
    """A number: integer, bigint or numeric, by its size; None where Spark's DECIMAL cannot hold it."""
    found = _digits(written)
    if found is None:
        return None
    whole, fraction = found
    if written.isdigit():
        value = int(whole or "0")
        if value < 2**31:
            return Value(number(value), INTEGER, constant=value)
        if value < 2**63:
            return Value(cast(value, BIGINT), BIGINT, constant=value)
    if len(whole) + len(fraction) > MAX_DIGITS:
        return None
    type_ = numeric(max(1, len(whole) + len(fraction)), len(fraction))
    if fraction:
        return Value(number(f"{whole or '0'}.{fraction}"), type_)
    return Value(cast(text(whole or "0"), type_), type_)


def numeric_literal(written: str) -> Value | None:
    """A quoted number as a numeric with exactly its digits; None if it is not a number, or too long for DECIMAL.

    >>> numeric_literal(" -12.50 ").tree.sql(), numeric_literal("1e3").tree.sql(), numeric_literal("NaN")
    ("CAST('-12.50' AS DECIMAL(4, 2))", "CAST('1000' AS DECIMAL(4, 0))", None)
    """
    found = re.fullmatch(r"\s*([+-]?)((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*", written, re.IGNORECASE | re.ASCII)
    digits = _digits(found.group(2)) if found else None
    if found is None or digits is None or len(digits[0]) + len(digits[1]) > MAX_DIGITS:
        return None
    whole, fraction = digits
    type_ = numeric(max(1, len(whole) + len(fraction)), len(fraction))
    sign = found.group(1).replace("+", "")
    shown = f"{sign}{whole or '0'}{'.' if fraction else ''}{fraction}"
    return Value(cast(text(shown), type_), type_)


def _digits(written: str) -> tuple[str, str] | None:
    """The digits before and after the decimal point; None if there are far too many."""
    mantissa, _, exponent = written.lower().partition("e")
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
