"""Functions of dates, timestamps and intervals.

A timestamptz is converted to the session's local time, as in PostgreSQL; the functions then compute with a timestamp
without time zone, so that clock changes do not interfere.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import micros_of
from millstream.sql.postgres.casts import coerce, convert
from millstream.sql.postgres.clocks import moment, moment_at, shown_at, zone_named
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import ZERO, Node, fn, negative, op, text
from millstream.sql.postgres.spark_builders import extract as spark_extract
from millstream.sql.postgres.spark_builders import total as sum_of
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Interval, Value, interval
from millstream.sql.postgres.types import Type, numeric

simple(t.TIMESTAMPTZ, "", now="NOW", transaction_timestamp="NOW", statement_timestamp="NOW")
simple(t.DATE, "integer integer integer", make_date="MAKE_DATE")


def on_the_clock(x: Value) -> Node:
    """A date or timestamp as a timestamp without time zone."""
    return x.tree if x.type == t.TIMESTAMP else cast(x.tree, t.TIMESTAMP)


def seconds_of(ntz: Node) -> Node:
    """The seconds of a time of day, with their fraction."""
    return spark_extract("SECOND", ntz)


def iso_year(day: Node) -> Node:
    """The year to which the week of a day belongs: that of the week's Thursday."""
    return fn("YEAR", fn("DATE_ADD", day, op(3, "-", fn("WEEKDAY", day))))


def _age(day: Node, years: int) -> Node:
    """The number of the century or millennium of a day; the first begins with the year 1."""
    return op(op(fn("YEAR", day), "+", years - 1), "DIV", years)


# date_trunc


def _first_day(year: Node, month: Node | int = 1) -> Node:
    return fn("MAKE_DATE", year, month, 1)


def _first_of_age(day: Node, years: int) -> Node:
    return _first_day(cast(op(op(_age(day, years), "*", years), "-", years - 1), t.INTEGER))


def _interval_of(*parts: Callable[[Node], Node]) -> Callable[[Node], Node]:
    return lambda ntz: fn("MAKE_DT_INTERVAL", 0, *(part(ntz) for part in parts))


def _hour(ntz: Node) -> Node:
    return fn("HOUR", ntz)


def _minute(ntz: Node) -> Node:
    return fn("MINUTE", ntz)


_DAYS: dict[str, Callable[[Node], Node]] = {
    "day": lambda d: d,
    "week": lambda d: fn("DATE_ADD", d, negative(fn("WEEKDAY", d))),
    "month": lambda d: _first_day(fn("YEAR", d), fn("MONTH", d)),
    "quarter": lambda d: _first_day(fn("YEAR", d), op(op(fn("QUARTER", d), "*", 3), "-", 2)),
    "year": lambda d: _first_day(fn("YEAR", d)),
    "decade": lambda d: _first_day(cast(op(op(fn("YEAR", d), "DIV", 10), "*", 10), t.INTEGER)),
    "century": lambda d: _first_of_age(d, 100),
    "millennium": lambda d: _first_of_age(d, 1000),
}
_CLOCK: dict[str, Callable[[Node], Node]] = {
    "hour": _interval_of(_hour),
    "minute": _interval_of(_hour, _minute),
    "second": _interval_of(_hour, _minute, lambda x: fn("SECOND", x)),
    "milliseconds": _interval_of(_hour, _minute, lambda x: fn("FLOOR", seconds_of(x), 3)),
    "microseconds": _interval_of(_hour, _minute, seconds_of),
}
_PLURALS = {
    "years": "year",
    "months": "month",
    "days": "day",
    "weeks": "week",
    "hours": "hour",
    "minutes": "minute",
    "seconds": "second",
    "millisecond": "milliseconds",
    "microsecond": "microseconds",
    "quarters": "quarter",
    "decades": "decade",
    "centuries": "century",
    "millennia": "millennium",
}


def _unit(word: object) -> str:
    folded = str(word).strip().lower()
    return _PLURALS.get(folded, folded)


@function("date_trunc", "text! any")
def _date_trunc(unit: Value, x: Value) -> Value:
    if not x.type.is_time:
        raise RefusalError(f"date_trunc of {x.type}", "cast it to timestamp")
    word, ntz = _unit(unit.constant), on_the_clock(x)
    day = cast(ntz, t.DATE)
    if word in _DAYS:
        cut: Node = cast(_DAYS[word](day), t.TIMESTAMP)
    elif word in _CLOCK:
        cut = op(cast(day, t.TIMESTAMP), "+", _CLOCK[word](ntz))
        if x.type == t.TIMESTAMPTZ:  # the result stays on the same side of a clock change
            return Value(op(x.tree, "-", op(ntz, "-", cut)), t.TIMESTAMPTZ)
    else:
        raise RefusalError(f"date_trunc to {word!r}")
    # for a date, PostgreSQL returns a timestamptz
    return Value(cut, t.TIMESTAMP) if x.type == t.TIMESTAMP else Value(moment(cut), t.TIMESTAMPTZ)


# extract and date_part

_WHOLE: dict[str, Callable[[Node], Node]] = {
    "year": lambda d: fn("YEAR", d),
    "month": lambda d: fn("MONTH", d),
    "day": lambda d: fn("DAY", d),
    "quarter": lambda d: fn("QUARTER", d),
    "dow": lambda d: op(fn("DAYOFWEEK", d), "-", 1),
    "isodow": lambda d: op(fn("WEEKDAY", d), "+", 1),
    "doy": lambda d: fn("DAYOFYEAR", d),
    "week": lambda d: fn("WEEKOFYEAR", d),
    "isoyear": iso_year,
    "decade": lambda d: op(fn("YEAR", d), "DIV", 10),
    "century": lambda d: _age(d, 100),
    "millennium": lambda d: _age(d, 1000),
}
_TIMES: dict[str, tuple[Callable[[Node], Node], Type]] = {
    "hour": (_hour, numeric(10, 0)),
    "minute": (_minute, numeric(10, 0)),
    "second": (seconds_of, numeric(8, 6)),
    "milliseconds": (lambda x: op(seconds_of(x), "*", 1000), numeric(8, 3)),
    "microseconds": (lambda x: op(seconds_of(x), "*", 1_000_000), numeric(8, 0)),
}


def extract(field: str, x: Value) -> Value:
    """EXTRACT(field FROM x), a numeric."""
    word = _unit(field)
    if x.interval is not None:
        return _of_interval(word, x.interval)
    if not x.type.is_time:
        raise RefusalError(f"EXTRACT from {x.type}", "cast it to date or timestamp")
    if word == "epoch" and x.type == t.DATE:
        days = cast(fn("DATEDIFF", x.tree, cast(text("1970-01-01"), t.DATE)), t.BIGINT)
        return Value(cast(op(days, "*", 86_400), numeric(20, 0)), numeric(20, 0))
    if word == "epoch":
        type_ = numeric(20, 6)
        return Value(cast(op(cast(micros_of(x.tree, x.type), numeric(20, 0)), "/", 1_000_000), type_), type_)
    if word in _WHOLE:
        day = x.tree if x.type == t.DATE else cast(on_the_clock(x), t.DATE)
        return Value(cast(_WHOLE[word](day), numeric(10, 0)), numeric(10, 0))
    if word in _TIMES and x.type != t.DATE:
        part, type_ = _TIMES[word]
        return Value(cast(part(on_the_clock(x)), type_), type_)
    raise RefusalError(f"EXTRACT({field.upper()} FROM {x.type})")


def _of_interval(word: str, x: Interval) -> Value:
    micros, months, days = cast(x.micros, numeric(18, 0)), cast(x.months, t.BIGINT), cast(x.days, t.BIGINT)
    whole_days = sum_of(
        [
            op(op(months, "DIV", 12), "*", 31_557_600),
            op(op(months, "%", 12), "*", 2_592_000),
            op(days, "*", 86_400),
        ]
    )
    parts: dict[str, tuple[Node, Type]] = {
        "year": (op(months, "DIV", 12), numeric(10, 0)),
        "month": (op(months, "%", 12), numeric(10, 0)),
        "day": (x.days, numeric(10, 0)),
        "hour": (op(micros, "DIV", 3_600_000_000), numeric(10, 0)),
        "minute": (op(op(micros, "DIV", 60_000_000), "%", 60), numeric(10, 0)),
        "second": (op(op(micros, "%", 60_000_000), "/", 1_000_000), numeric(8, 6)),
        "epoch": (op(cast(whole_days, numeric(20, 0)), "+", op(micros, "/", 1_000_000)), numeric(20, 6)),
    }
    if word not in parts:
        raise RefusalError(f"EXTRACT({word.upper()} FROM interval)")
    part, type_ = parts[word]
    return Value(cast(part, type_), type_)


@function("date_part", "text! any")
def _date_part(field: Value, x: Value) -> Value:
    found = extract(str(field.constant), x)
    return Value(cast(found.tree, t.DOUBLE), t.DOUBLE)


# Construction from parts


@function("make_timestamp", "integer integer integer integer integer double")
def _make_timestamp(*parts: Value) -> Value:
    *whole, second = (p.tree for p in parts)
    return Value(fn("MAKE_TIMESTAMP_NTZ", *whole, cast(second, numeric(8, 6))), t.TIMESTAMP)


_INTERVAL_PARTS = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def make_interval(positional: list[Value], named: dict[str, Value]) -> Value:
    """make_interval(years, months, weeks, days, hours, mins, secs), by position or by name."""
    parts = dict(zip(_INTERVAL_PARTS, positional, strict=False)) | named
    if unknown := set(parts) - set(_INTERVAL_PARTS):
        raise RefusalError(f"make_interval({', '.join(sorted(unknown))} => ...)")
    seconds = parts.pop("secs", None)
    given = {part: cast(coerce(value, t.INTEGER).tree, t.BIGINT) for part, value in parts.items()}

    def total(**weights: int) -> Node:
        terms = [op(given[part], "*", weight) for part, weight in weights.items() if part in given]
        return sum_of(terms) if terms else ZERO

    micros = total(hours=3_600_000_000, mins=60_000_000)
    if seconds is not None:
        fraction = op(cast(seconds.tree, t.DOUBLE), "*", 1_000_000)
        micros = op(micros, "+", cast(fn("RINT", fraction), t.BIGINT))
    return interval(total(years=12, months=1), total(weeks=7, days=1), micros)


def at_time_zone(x: Value, zone: Value) -> Value:
    """`x AT TIME ZONE zone`: the local time there at an instant, or the instant at which it is a local time there."""
    if not isinstance(zone.constant, str):
        raise RefusalError("AT TIME ZONE with a zone that is not a constant")
    place = zone_named(zone.constant)
    if x.type == t.DATE:
        x = convert(x, t.TIMESTAMPTZ)
    if x.type == t.TIMESTAMPTZ:
        return Value(shown_at(x.tree, place), t.TIMESTAMP)
    if x.type == t.TIMESTAMP:
        return Value(moment_at(x.tree, place), t.TIMESTAMPTZ)
    raise RefusalError(f"AT TIME ZONE of {x.type}")
