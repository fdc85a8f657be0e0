"""Between moments and what clocks show: PostgreSQL's choices where the clocks are changed.

A time that a clock shows twice, when it is put back, is the later one to PostgreSQL and the earlier one to Spark. A
time that it skips is the same moment to both. No moment goes to another place by way of the session's own clock, on
which it may be one of two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from zoneinfo import available_timezones

from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.values import ITEM

_HOURS = "MAKE_DT_INTERVAL(0, 3)"
"""More than clocks are put back by, and less than between two changes."""
_PLACE = re.compile(r"[A-Za-z]\w*(/[A-Za-z][A-Za-z_-]*)+")
_ZERO = "CAST('1970-01-01 00:00:00' AS TIMESTAMP_NTZ)"


def moment(ntz: str) -> str:
    """The moment the session's clock shows a time."""
    return _with(ntz, _moment)


def _moment(x: str) -> str:
    later = f"(CAST(({x} + {_HOURS}) AS TIMESTAMP) - {_HOURS})"
    return f"CASE WHEN CAST({later} AS TIMESTAMP_NTZ) = {x} THEN {later} ELSE CAST({x} AS TIMESTAMP) END"


def moment_at(ntz: str, zone: str) -> str:
    """The moment a place's clock shows a time; the place is a literal of Spark's."""
    utc = ntz if zone == "'UTC'" else _with(ntz, lambda x: _utc(x, zone))
    return f"CAST(CONCAT(CAST({utc} AS STRING), 'Z') AS TIMESTAMP)"


def _utc(x: str, zone: str) -> str:
    later = f"(CONVERT_TIMEZONE({zone}, 'UTC', {x} + {_HOURS}) - {_HOURS})"
    earlier = f"CONVERT_TIMEZONE({zone}, 'UTC', {x})"
    return f"CASE WHEN CONVERT_TIMEZONE('UTC', {zone}, {later}) = {x} THEN {later} ELSE {earlier} END"


def shown_at(tz: str, zone: str) -> str:
    """What a place's clock shows at a moment."""
    seconds = f"CAST((CAST(UNIX_MICROS({tz}) AS DECIMAL(20, 0)) / 1000000) AS DECIMAL(18, 6))"
    utc = f"({_ZERO} + MAKE_DT_INTERVAL(0, 0, 0, {seconds}))"
    return utc if zone == "'UTC'" else f"CONVERT_TIMEZONE('UTC', {zone}, {utc})"


def zone_named(name: str) -> str:
    """A time zone, as a literal of Spark's.

    >>> zone_named("america/new_york"), zone_named("utc")
    ("'America/New_York'", "'UTC'")

    Raises:
        RefusalError: it is none that means the same to both.
    """
    if name.strip().upper() in {"UTC", "GMT", "Z"}:
        return "'UTC'"
    places = {zone.lower(): zone for zone in available_timezones() if _PLACE.fullmatch(zone)}
    found = places.get(name.strip().lower())
    if found is None:
        hint = "write 'UTC' or a name like 'Europe/Berlin': offsets and abbreviations mean others to Spark"
        raise RefusalError(f"the time zone {name!r}", hint)
    return f"'{found}'"


def _with(fragment: str, body: Callable[[str], str]) -> str:
    """`body` of a fragment, which is computed once unless it is a name or a literal."""
    if re.fullmatch(r"[`\w.]+|CAST\('[-\d: .T]+' AS \w+\)", fragment):
        return body(fragment)
    return f"GET(TRANSFORM(ARRAY({fragment}), {ITEM} -> {body(ITEM)}), 0)"
