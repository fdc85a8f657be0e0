"""Functions of dates, timestamps and intervals.

A timestamptz is looked at on the session's clock, as PostgreSQL does; what is computed then is computed on a
timestamp without time zone, so that no change of the clocks comes between.
"""

from __future__ import annotations

import re

from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import micros_of
from millstream.sql.postgres.casts import coerce, convert
from millstream.sql.postgres.clocks import moment, moment_at, shown_at, zone_named
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import Type, numeric
from millstream.sql.postgres.values import Interval, Value, cast, interval, text_literal

simple(t.TIMESTAMPTZ, "", now="NOW()", transaction_timestamp="NOW()", statement_timestamp="NOW()")
simple(t.DATE, "integer integer integer", make_date="MAKE_DATE({0}, {1}, {2})")


def on_the_clock(x: Value) -> str:
    """A date or timestamp without time zone."""
    return x.sql if x.type == t.TIMESTAMP else cast(x.sql, t.TIMESTAMP)


def _day(ntz: str) -> str:
    return f"CAST({ntz} AS DATE)"


# date_trunc

_DAYS = {
    "day": "{d}",
    "week": "DATE_ADD({d}, (- WEEKDAY({d})))",
    "month": "MAKE_DATE(YEAR({d}), MONTH({d}), 1)",
    "quarter": "MAKE_DATE(YEAR({d}), QUARTER({d}) * 3 - 2, 1)",
    "year": "MAKE_DATE(YEAR({d}), 1, 1)",
    "decade": "MAKE_DATE(CAST(YEAR({d}) DIV 10 * 10 AS INT), 1, 1)",
    "century": "MAKE_DATE(CAST((YEAR({d}) + 99) DIV 100 * 100 - 99 AS INT), 1, 1)",
    "millennium": "MAKE_DATE(CAST((YEAR({d}) + 999) DIV 1000 * 1000 - 999 AS INT), 1, 1)",
}
_CLOCK = {
    "hour": "MAKE_DT_INTERVAL(0, HOUR({x}))",
    "minute": "MAKE_DT_INTERVAL(0, HOUR({x}), MINUTE({x}))",
    "second": "MAKE_DT_INTERVAL(0, HOUR({x}), MINUTE({x}), SECOND({x}))",
    "milliseconds": "MAKE_DT_INTERVAL(0, HOUR({x}), MINUTE({x}), FLOOR(EXTRACT(SECOND FROM {x}), 3))",
    "microseconds": "MAKE_DT_INTERVAL(0, HOUR({x}), MINUTE({x}), EXTRACT(SECOND FROM {x}))",
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


def _unit(text: object) -> str:
    word = str(text).strip().lower()
    return _PLURALS.get(word, word)


@function("date_trunc", "text! any")
def _date_trunc(unit: Value, x: Value) -> Value:
    if not x.type.is_time:
        raise RefusalError(f"date_trunc of {x.type}", "cast it to timestamp")
    word, ntz = _unit(unit.constant), on_the_clock(x)
    if word in _DAYS:
        cut = f"CAST({_DAYS[word].format(d=_day(ntz))} AS TIMESTAMP_NTZ)"
    elif word in _CLOCK:
        cut = f"(CAST({_day(ntz)} AS TIMESTAMP_NTZ) + {_CLOCK[word].format(x=ntz)})"
        if x.type == t.TIMESTAMPTZ:  # it stays on its side of a change of the clocks
            return Value(f"({x.sql} - ({ntz} - {cut}))", t.TIMESTAMPTZ)
    else:
        raise RefusalError(f"date_trunc to {word!r}")
    # of a date, PostgreSQL makes a timestamptz
    return Value(cut, t.TIMESTAMP) if x.type == t.TIMESTAMP else Value(moment(cut), t.TIMESTAMPTZ)


# extract and date_part

_WHOLE = {
    "year": "YEAR({d})",
    "month": "MONTH({d})",
    "day": "DAY({d})",
    "quarter": "QUARTER({d})",
    "dow": "(DAYOFWEEK({d}) - 1)",
    "isodow": "(WEEKDAY({d}) + 1)",
    "doy": "DAYOFYEAR({d})",
    "week": "WEEKOFYEAR({d})",
    "isoyear": "YEAR(DATE_ADD({d}, 3 - WEEKDAY({d})))",
    "decade": "(YEAR({d}) DIV 10)",
    "century": "((YEAR({d}) + 99) DIV 100)",
    "millennium": "((YEAR({d}) + 999) DIV 1000)",
}
_TIMES = {
    "hour": ("HOUR({x})", numeric(10, 0)),
    "minute": ("MINUTE({x})", numeric(10, 0)),
    "second": ("EXTRACT(SECOND FROM {x})", numeric(8, 6)),
    "milliseconds": ("(EXTRACT(SECOND FROM {x}) * 1000)", numeric(8, 3)),
    "microseconds": ("(EXTRACT(SECOND FROM {x}) * 1000000)", numeric(8, 0)),
}


def extract(field: str, x: Value) -> Value:
    """EXTRACT(field FROM x), a numeric."""
    word = _unit(field)
    if x.interval is not None:
        return _of_interval(word, x.interval)
    if not x.type.is_time:
        raise RefusalError(f"EXTRACT from {x.type}", "cast it to date or timestamp")
    if word == "epoch" and x.type == t.DATE:
        days = f"CAST(DATEDIFF({x.sql}, CAST('1970-01-01' AS DATE)) AS BIGINT)"
        return Value(cast(f"({days} * 86400)", numeric(20, 0)), numeric(20, 0))
    if word == "epoch":
        micros = micros_of(on_the_clock(x) if x.type != t.TIMESTAMPTZ else x.sql, _clock_type(x.type))
        type_ = numeric(20, 6)
        return Value(cast(f"(CAST({micros} AS DECIMAL(20, 0)) / 1000000)", type_), type_)
    if word in _WHOLE:
        day = x.sql if x.type == t.DATE else _day(on_the_clock(x))
        return Value(cast(_WHOLE[word].format(d=day), numeric(10, 0)), numeric(10, 0))
    if word in _TIMES and x.type != t.DATE:
        template, type_ = _TIMES[word]
        return Value(cast(template.format(x=on_the_clock(x)), type_), type_)
    raise RefusalError(f"EXTRACT({field.upper()} FROM {x.type})")


def _clock_type(type_: Type) -> Type:
    return t.TIMESTAMPTZ if type_ == t.TIMESTAMPTZ else t.TIMESTAMP


def _of_interval(word: str, x: Interval) -> Value:
    micros = f"CAST({x.micros} AS DECIMAL(18, 0))"
    months = f"CAST({x.months} AS BIGINT)"
    templates: dict[str, tuple[str, Type]] = {
        "year": (f"({months} DIV 12)", numeric(10, 0)),
        "month": (f"({months} % 12)", numeric(10, 0)),
        "day": (x.days, numeric(10, 0)),
        "hour": (f"({micros} DIV 3600000000)", numeric(10, 0)),
        "minute": (f"({micros} DIV 60000000 % 60)", numeric(10, 0)),
        "second": (f"({micros} % 60000000 / 1000000)", numeric(8, 6)),
        "epoch": (
            f"(CAST(({months} DIV 12 * 31557600 + {months} % 12 * 2592000 + CAST({x.days} AS BIGINT) * 86400) "
            f"AS DECIMAL(20, 0)) + {micros} / 1000000)",
            numeric(20, 6),
        ),
    }
    if word not in templates:
        raise RefusalError(f"EXTRACT({word.upper()} FROM interval)")
    template, type_ = templates[word]
    return Value(cast(template, type_), type_)


@function("date_part", "text! any")
def _date_part(field: Value, x: Value) -> Value:
    found = extract(str(field.constant), x)
    return Value(cast(found.sql, t.DOUBLE), t.DOUBLE)


# Made of parts


@function("make_timestamp", "integer integer integer integer integer double")
def _make_timestamp(*parts: Value) -> Value:
    year, month, day, hour, minute, second = (p.sql for p in parts)
    return Value(
        f"MAKE_TIMESTAMP_NTZ({year}, {month}, {day}, {hour}, {minute}, CAST({second} AS DECIMAL(8, 6)))", t.TIMESTAMP
    )


_INTERVAL_PARTS = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def make_interval(positional: list[Value], named: dict[str, Value]) -> Value:
    """make_interval(years, months, weeks, days, hours, mins, secs), by place or by name."""
    parts = dict(zip(_INTERVAL_PARTS, positional, strict=False)) | named
    if unknown := set(parts) - set(_INTERVAL_PARTS):
        raise RefusalError(f"make_interval({', '.join(sorted(unknown))} => ...)")
    seconds = parts.pop("secs", None)
    given = {name: f"CAST({coerce(value, t.INTEGER).sql} AS BIGINT)" for name, value in parts.items()}

    def total(**weights: str) -> str:
        terms = [f"{given[name]} * {weight}" for name, weight in weights.items() if name in given]
        return f"({' + '.join(terms)})" if terms else "0"

    micros = total(hours="3600000000", mins="60000000")
    if seconds is not None:
        part = f"CAST(RINT({cast(seconds.sql, t.DOUBLE)} * 1000000) AS BIGINT)"
        micros = f"({micros} + {part})"
    return interval(total(years="12", months="1"), total(weeks="7", days="1"), micros)


@function("to_timestamp", "any text!?")
def _to_timestamp(x: Value, pattern: Value | None = None) -> Value:
    if pattern is None:
        if not x.type.is_number:
            raise RefusalError(f"to_timestamp of {x.type}")
        return Value(f"TIMESTAMP_SECONDS({cast(x.sql, t.DOUBLE)})", t.TIMESTAMPTZ)
    shown = f"TO_TIMESTAMP_NTZ({coerce(x, t.TEXT).sql}, {text_literal(_java_pattern(pattern))})"
    return Value(moment(shown), t.TIMESTAMPTZ)


@function("to_date", "text text!")
def _to_date(x: Value, pattern: Value) -> Value:
    return Value(f"CAST(TO_TIMESTAMP_NTZ({x.sql}, {text_literal(_java_pattern(pattern))}) AS DATE)", t.DATE)


_JAVA = {"YYYY": "yyyy", "MM": "MM", "DD": "dd", "HH24": "HH", "MI": "mm", "SS": "ss"}


def _java_pattern(pattern: Value) -> str:
    """Only fixed places of digits: what both read, they read alike."""
    out = []
    for piece in re.findall(r"YYYY|MM|DD|HH24|MI|SS|[^A-Z]|.", str(pattern.constant).upper()):
        if piece in _JAVA:
            out.append(_JAVA[piece])
        elif re.fullmatch(r"[-/:. ]", piece):
            out.append(piece)
        else:
            raise RefusalError(f"the pattern {pattern.constant!r}", "only YYYY MM DD HH24 MI SS and - / : . are known")
    return "".join(out)


# to_char

_TWO = "LPAD(CAST({} AS STRING), 2, '0')"
_CHARS = {
    "YYYY": "LPAD(CAST(YEAR({x}) AS STRING), 4, '0')",
    "YY": "LPAD(CAST(YEAR({x}) % 100 AS STRING), 2, '0')",
    "IYYY": "LPAD(CAST(YEAR(DATE_ADD({x}, 3 - WEEKDAY({x}))) AS STRING), 4, '0')",
    "MM": _TWO.format("MONTH({x})"),
    "DD": _TWO.format("DAY({x})"),
    "DDD": "LPAD(CAST(DAYOFYEAR({x}) AS STRING), 3, '0')",
    "HH24": _TWO.format("HOUR({x})"),
    "HH12": _TWO.format("(HOUR({x}) + 11) % 12 + 1"),
    "HH": _TWO.format("(HOUR({x}) + 11) % 12 + 1"),
    "MI": _TWO.format("MINUTE({x})"),
    "SS": _TWO.format("SECOND({x})"),
    "MS": "LPAD(CAST(CAST(FLOOR(EXTRACT(SECOND FROM {x}) * 1000) AS INT) % 1000 AS STRING), 3, '0')",
    "US": "LPAD(CAST(CAST(EXTRACT(SECOND FROM {x}) * 1000000 AS INT) % 1000000 AS STRING), 6, '0')",
    "IW": _TWO.format("WEEKOFYEAR({x})"),
    "ID": "CAST(WEEKDAY({x}) + 1 AS STRING)",
    "D": "CAST(DAYOFWEEK({x}) AS STRING)",
    "Q": "CAST(QUARTER({x}) AS STRING)",
    "Mon": "DATE_FORMAT({x}, 'MMM')",
    "MON": "UPPER(DATE_FORMAT({x}, 'MMM'))",
    "mon": "LOWER(DATE_FORMAT({x}, 'MMM'))",
    "Dy": "DATE_FORMAT({x}, 'EEE')",
    "DY": "UPPER(DATE_FORMAT({x}, 'EEE'))",
    "dy": "LOWER(DATE_FORMAT({x}, 'EEE'))",
    "Month": "RPAD(DATE_FORMAT({x}, 'MMMM'), 9, ' ')",
    "MONTH": "RPAD(UPPER(DATE_FORMAT({x}, 'MMMM')), 9, ' ')",
    "month": "RPAD(LOWER(DATE_FORMAT({x}, 'MMMM')), 9, ' ')",
    "Day": "RPAD(DATE_FORMAT({x}, 'EEEE'), 9, ' ')",
    "DAY": "RPAD(UPPER(DATE_FORMAT({x}, 'EEEE')), 9, ' ')",
    "day": "RPAD(LOWER(DATE_FORMAT({x}, 'EEEE')), 9, ' ')",
    "FMMonth": "DATE_FORMAT({x}, 'MMMM')",
    "FMDay": "DATE_FORMAT({x}, 'EEEE')",
    "FMMM": "CAST(MONTH({x}) AS STRING)",
    "FMDD": "CAST(DAY({x}) AS STRING)",
    "FMHH24": "CAST(HOUR({x}) AS STRING)",
    "AM": "CASE WHEN HOUR({x}) < 12 THEN 'AM' ELSE 'PM' END",
    "PM": "CASE WHEN HOUR({x}) < 12 THEN 'AM' ELSE 'PM' END",
    "am": "CASE WHEN HOUR({x}) < 12 THEN 'am' ELSE 'pm' END",
    "pm": "CASE WHEN HOUR({x}) < 12 THEN 'am' ELSE 'pm' END",
}
_OTHERS = ("SSSSS", "SSSS", "IDDD", "FMDDD")
"""Patterns of PostgreSQL's that are not known, but are made of known ones."""
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
    pieces: list[str] = []
    for found in _TOKEN.finditer(str(pattern.constant)):
        token = found.group()
        template = _CHARS.get(token) or (_CHARS.get(token.upper()) if token.upper() in _ANY_CASE else None)
        if template is not None:
            pieces.append(template.format(x=ntz))
        elif "\\" not in token and (found.group(1) is not None or not token.isalnum()):
            pieces.append(text_literal(found.group(1) if found.group(1) is not None else token))
        else:
            raise RefusalError(
                f"{token!r} in the pattern {pattern.constant!r} of to_char", f"known are {', '.join(_CHARS)}"
            )
    return Value(f"CONCAT({', '.join(pieces)})" if pieces else "''", t.TEXT)


def at_time_zone(x: Value, zone: Value) -> Value:
    """`x AT TIME ZONE zone`: a moment on that place's clock, or the moment a clock there shows x."""
    if not isinstance(zone.constant, str):
        raise RefusalError("AT TIME ZONE with a zone that is not a constant")
    place = zone_named(zone.constant)
    if x.type == t.DATE:
        x = convert(x, t.TIMESTAMPTZ)
    if x.type == t.TIMESTAMPTZ:
        return Value(shown_at(x.sql, place), t.TIMESTAMP)
    if x.type == t.TIMESTAMP:
        return Value(moment_at(x.sql, place), t.TIMESTAMPTZ)
    raise RefusalError(f"AT TIME ZONE of {x.type}")
