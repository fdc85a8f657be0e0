"""Formatting and parsing dates and timestamps by patterns: to_char, to_date and to_timestamp."""

from __future__ import annotations

import re
from collections.abc import Callable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.clocks import moment
from millstream.sql.postgres.functions.dates import iso_year, on_the_clock, seconds_of
from millstream.sql.postgres.functions.registry import function
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import Node, fn, op, text, when
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value

# to_timestamp and to_date


@function("to_timestamp", "any text!?")
def _to_timestamp(x: Value, pattern: Value | None = None) -> Value:
    if pattern is None:
        if not x.type.is_number:
            raise RefusalError(f"to_timestamp of {x.type}")
        return Value(fn("TIMESTAMP_SECONDS", cast(x.tree, t.DOUBLE)), t.TIMESTAMPTZ)
    return Value(moment(_read(coerce(x, t.TEXT), pattern)), t.TIMESTAMPTZ)


@function("to_date", "text text!")
def _to_date(x: Value, pattern: Value) -> Value:
    return Value(cast(_read(x, pattern), t.DATE), t.DATE)


def _read(x: Value, pattern: Value) -> Node:
    return fn("TO_TIMESTAMP_NTZ", x.tree, text(_java_pattern(pattern)))


_JAVA = {"YYYY": "yyyy", "MM": "MM", "DD": "dd", "HH24": "HH", "MI": "mm", "SS": "ss"}


def _java_pattern(pattern: Value) -> str:
    """Only patterns of fixed digits: PostgreSQL and Spark parse those alike."""
    out = []
    for piece in re.findall(r"YYYY|MM|DD|HH24|MI|SS|[^A-Z]|.", str(pattern.constant).upper()):
        if piece in _JAVA:
            out.append(_JAVA[piece])
        elif re.fullmatch(r"[-/:. ]", piece):
            out.append(piece)
        else:
            raise RefusalError(
                f"the pattern {pattern.constant!r}", "only YYYY MM DD HH24 MI SS and - / : . are supported"
            )
    return "".join(out)


# to_char


def _call(function_name: str) -> Callable[[Node], Node]:
    return lambda x: fn(function_name, x)


def _padded(part: Callable[[Node], Node], width: int = 2) -> Callable[[Node], Node]:
    return lambda x: fn("LPAD", cast(part(x), t.TEXT), width, text("0"))


def _shown(part: Callable[[Node], Node]) -> Callable[[Node], Node]:
    return lambda x: cast(part(x), t.TEXT)


def _named(java: str, *, case: str | None = None, is_padded: bool = False) -> Callable[[Node], Node]:
    """The name of a month or day, in English; padded to nine characters if `is_padded`."""

    def part(x: Node) -> Node:
        word = fn("DATE_FORMAT", x, text(java))
        word = fn(case, word) if case is not None else word
        return fn("RPAD", word, 9, text(" ")) if is_padded else word

    return part


def _half_day(before: str, after: str) -> Callable[[Node], Node]:
    return lambda x: when(op(fn("HOUR", x), "<", 12), text(before), text(after))


def _twelve_hours(x: Node) -> Node:
    return op(op(op(fn("HOUR", x), "+", 11), "%", 12), "+", 1)


def _millis(x: Node) -> Node:
    return op(cast(fn("FLOOR", op(seconds_of(x), "*", 1000)), t.INTEGER), "%", 1000)


def _micros(x: Node) -> Node:
    return op(cast(op(seconds_of(x), "*", 1_000_000), t.INTEGER), "%", 1_000_000)


_CHARS: dict[str, Callable[[Node], Node]] = {
    "YYYY": _padded(_call("YEAR"), 4),
    "YY": _padded(lambda x: op(fn("YEAR", x), "%", 100)),
    "IYYY": _padded(iso_year, 4),
    "MM": _padded(_call("MONTH")),
    "DD": _padded(_call("DAY")),
    "DDD": _padded(_call("DAYOFYEAR"), 3),
    "HH24": _padded(_call("HOUR")),
    "HH12": _padded(_twelve_hours),
    "HH": _padded(_twelve_hours),
    "MI": _padded(_call("MINUTE")),
    "SS": _padded(_call("SECOND")),
    "MS": _padded(_millis, 3),
    "US": _padded(_micros, 6),
    "IW": _padded(_call("WEEKOFYEAR")),
    "ID": _shown(lambda x: op(fn("WEEKDAY", x), "+", 1)),
    "D": _shown(_call("DAYOFWEEK")),
    "Q": _shown(_call("QUARTER")),
    "Mon": _named("MMM"),
    "MON": _named("MMM", case="UPPER"),
    "mon": _named("MMM", case="LOWER"),
    "Dy": _named("EEE"),
    "DY": _named("EEE", case="UPPER"),
    "dy": _named("EEE", case="LOWER"),
    "Month": _named("MMMM", is_padded=True),
    "MONTH": _named("MMMM", case="UPPER", is_padded=True),
    "month": _named("MMMM", case="LOWER", is_padded=True),
    "Day": _named("EEEE", is_padded=True),
    "DAY": _named("EEEE", case="UPPER", is_padded=True),
    "day": _named("EEEE", case="LOWER", is_padded=True),
    "FMMonth": _named("MMMM"),
    "FMDay": _named("EEEE"),
    "FMMM": _shown(_call("MONTH")),
    "FMDD": _shown(_call("DAY")),
    "FMHH24": _shown(_call("HOUR")),
    "AM": _half_day("AM", "PM"),
    "PM": _half_day("AM", "PM"),
    "am": _half_day("am", "pm"),
    "pm": _half_day("am", "pm"),
}
_OTHERS = ("SSSSS", "SSSS", "IDDD", "FMDDD")
"""PostgreSQL patterns that are not supported, but consist of supported ones."""
_TOKEN = re.compile(
    '"([^"]*)"|' + "|".join([*_OTHERS, *sorted(_CHARS, key=len, reverse=True)]) + r"|[a-z]+\d*|.",
    re.IGNORECASE | re.DOTALL,
)
_ANY_CASE = {
    "YYYY",
    "YY",
    "IYYY",
    "MM",
    "DD",
    "DDD",
    "HH24",
    "HH12",
    "HH",
    "MI",
    "SS",
    "MS",
    "US",
    "IW",
    "ID",
    "D",
    "Q",
}


@function("to_char", "any text!")
def _to_char(x: Value, pattern: Value) -> Value:
    if not x.type.is_time:
        raise RefusalError(f"to_char of {x.type}", "cast numbers to text, or to numeric(p, s) and then to text")
    ntz = on_the_clock(x)
    pieces: list[Node] = []
    for found in _TOKEN.finditer(str(pattern.constant)):
        token = found.group()
        part = _CHARS.get(token) or (_CHARS.get(token.upper()) if token.upper() in _ANY_CASE else None)
        if part is not None:
            pieces.append(part(ntz))
        elif "\\" not in token and (found.group(1) is not None or not token.isalnum()):
            pieces.append(text(found.group(1) if found.group(1) is not None else token))
        else:
            raise RefusalError(
                f"{token!r} in the pattern {pattern.constant!r} of to_char", f"supported are {', '.join(_CHARS)}"
            )
    return Value(fn("CONCAT", *pieces) if pieces else text(""), t.TEXT)
