"""Converts PostgreSQL's texts of numbers, whole columns at once, to exactly the numbers that are written.

Arrow's parsers cannot be trusted with a number that the type may not hold: the parser of decimals takes digits modulo
2^128 (340282366920938463463.374607431768211456 becomes 0), and the parser of floats returns infinity or zero for
numbers that are too large or too small. So this module first checks that the digits fit.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MOST_DIGITS = 38
_NINE = ord("9")
_ZEROS = pa.array(["0", "-0"])
_USUAL_DECIMALS = 18
_NUMBER = re.compile(r"-?0*(\d*?)(?:\.(\d*?)0*)?")


class UnfitError(Exception):
    """A text of a column is not a value of its type."""


def decimals(texts: pa.StringArray, type_: pa.Decimal128Type) -> pa.Array:
    """The texts as decimals; they may have more trailing zeros than the type's scale.

    Raises:
        UnfitError: a text has more digits than the type, or is NaN or infinite.
    """
    whole_digits, scale = type_.precision - type_.scale, type_.scale
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest + scale <= _MOST_DIGITS and not _has_letters(texts):
        # Wherever the decimal point is, no digit is lost on the way to the type's scale.
        return _parsed(texts, type_)
    fits = pc.match_substring_regex(texts, rf"^-?0*[0-9]{{0,{whole_digits}}}(\.[0-9]{{0,{scale}}}0*)?$")
    if not pc.all(fits, min_count=0).as_py():
        raise UnfitError
    return _parsed(without_trailing_zeros(texts) if longest > _MOST_DIGITS else texts, type_)


def _parsed(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    try:
        return pc.cast(texts, type_)
    except pa.ArrowInvalid:
        raise UnfitError from None


def _has_letters(texts: pa.StringArray) -> bool:
    """Whether there is NaN, Infinity or an exponent: the codes of their letters are above those of digits."""
    _, offsets_buffer, data = texts.buffers()
    if data is None or len(texts) == 0:
        return False
    offsets = np.frombuffer(offsets_buffer, np.int32)
    first, last = int(offsets[texts.offset]), int(offsets[texts.offset + len(texts)])
    return first < last and int(np.frombuffer(data, np.uint8)[first:last].max()) > _NINE


def without_trailing_zeros(texts: pa.StringArray) -> pa.StringArray:
    """The shortest texts of the same numbers.

    >>> without_trailing_zeros(pa.array(["1.50", "10", "2.000"])).to_pylist()
    ['1.5', '10', '2']
    """
    shorter = pc.replace_substring_regex(texts, r"(\.\d*[1-9])0+$", r"\1")
    return pc.replace_substring_regex(shorter, r"\.0+$", "")


def fitting_range(text: str) -> str | None:
    """A range with all 38 digits that holds all numbers in a text, of one value or an array; None if there is none.

    >>> fitting_range("1e30"), fitting_range("1000000000000000000000"), fitting_range("{1.5,0.0000000000000000000012}")
    (None, 'decimal(38,16)', 'decimal(38,22)')
    """
    whole = decimals_ = 0
    for number in text.strip("{}").split(","):
        if number == "NULL":
            continue
        found = _NUMBER.fullmatch(number)
        if found is None:
            return None
        whole, decimals_ = max(whole, len(found[1])), max(decimals_, len(found[2] or ""))
    if whole + decimals_ > _MOST_DIGITS:
        return None
    return f"decimal({_MOST_DIGITS},{max(decimals_, min(_MOST_DIGITS - whole, _USUAL_DECIMALS))})"


def floats(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """The texts as floats; PostgreSQL writes as many digits as distinguish a value from its neighbours.

    Raises:
        UnfitError: a text is out of the type's range.
    """
    values = _parsed(texts, type_)
    infinite = texts.filter(pc.is_inf(values))
    zero = texts.filter(pc.equal(values, pa.scalar(0.0, type_)))
    if not (
        pc.all(pc.ends_with(infinite, "Infinity"), min_count=0).as_py()
        and pc.all(pc.is_in(zero, _ZEROS), min_count=0).as_py()
    ):
        raise UnfitError
    return values
