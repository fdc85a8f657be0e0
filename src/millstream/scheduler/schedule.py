"""Schedules: how stale a stream table may become (`5m`), or when it is refreshed (`0 6 * * 1-5`). Pure.

A duration counts from the last refresh; a cron expression fires at fixed times, in the time zone of the stream table;
`CALCULATED` follows the schedules of the table's dependents (see `dag`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from cronsim import CronSim, CronSimError

from millstream.errors import Code, MillstreamError
from millstream.scheduler.wall_clock import next_fire, zone_of

CALCULATED = "CALCULATED"
MAX_DURATION_SECONDS = 5_200 * 7 * 86_400  # a hundred years: far below where dates overflow

_UNIT_MILLISECONDS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|[wdhms]))+")
_PART = re.compile(r"([0-9]+)(ms|[wdhms])")
_CRON_FIELDS = re.compile(r"[0-9A-Za-z*/,#-]{1,200}")
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_HINT = (
    "write a duration ('30s', '5m', '1h30m', '2d', '1w'), a cron expression of 5 or 6 fields ('*/5 * * * *'), "
    "an alias (" + ", ".join(_ALIASES) + ") or CALCULATED"
)


class ScheduleKind(StrEnum):
    """What decides when a table is due."""

    DURATION = "DURATION"
    CRON = "CRON"
    CALCULATED = "CALCULATED"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A checked schedule. `text` is what the user wrote; `seconds` or `cron` is set, depending on the kind."""

    kind: ScheduleKind
    text: str
    seconds: float | None = None
    cron: str | None = None
    time_zone: str = "UTC"

    @classmethod
    def parse(cls, text: str, *, min_seconds: float = 1, time_zone: str = "UTC") -> Schedule:
        """Read a schedule.

        Args:
            text: a duration, a cron expression, an alias or CALCULATED.
            min_seconds: the shortest duration allowed; it does not apply to cron expressions.
            time_zone: the time zone in which a cron expression's hours and days count.

        Raises:
            MillstreamError: `SCHEDULE_INVALID`.

        >>> Schedule.parse("1h30m").seconds
        5400.0
        >>> Schedule.parse("@hourly").cron
        '0 * * * *'
        """
        shown = text.strip()
        if shown.upper() == CALCULATED:
            return cls(ScheduleKind.CALCULATED, CALCULATED)
        if _DURATION.fullmatch(shown):
            return cls(ScheduleKind.DURATION, shown, seconds=_duration(shown, min_seconds))
        if shown.startswith("@") or len(shown.split()) > 1:
            return cls(ScheduleKind.CRON, shown, cron=_cron(shown), time_zone=_known_zone(time_zone))
        raise _invalid(shown, "it is not a duration, a cron expression or CALCULATED", _hint_for(shown))

    def is_due(self, last: datetime | None, now: datetime) -> bool:
        """Whether a table last refreshed at `last` is due at `now`; a table that was never refreshed always is.

        CALCULATED is never due by itself.
        """
        due = self.next_due(last, now)
        return due is not None and due <= now

    def next_due(self, last: datetime | None, now: datetime) -> datetime | None:
        """When a table last refreshed at `last` is next due: `now` if it is overdue, None if CALCULATED."""
        if self.kind is ScheduleKind.CALCULATED:
            return None
        if last is None:
            return now
        due = self.deadline(last) or self._fires_after(last)
        return None if due is None else max(due, now)

    def deadline(self, last: datetime | None) -> datetime | None:
        """When data from `last` becomes stale; None unless the schedule is a duration."""
        return None if last is None or self.seconds is None else last + timedelta(seconds=self.seconds)

    def _fires_after(self, moment: datetime) -> datetime | None:
        """When the cron expression fires next; None if not within fifty years."""
        if self.cron is None:
            return None
        return next_fire(self.cron, moment, zone_of(self.time_zone))


def length_of_time(text: str) -> float:
    """A length of time in seconds, written like a schedule.

    >>> length_of_time("1m30s")
    90.0

    Raises:
        MillstreamError: SETTING_INVALID.
    """
    if not _DURATION.fullmatch(text.strip()):
        hint = "write a length of time, e.g. 30s, 1h30m or 2d"
        raise MillstreamError(Code.SETTING_INVALID, f"{text!r} is not a length of time", hint=hint)
    return _seconds(text)


def _duration(text: str, min_seconds: float) -> float:
    units = [unit for _, unit in _PART.findall(text)]
    if len(set(units)) != len(units):
        hint = "write each of w, d, h, m, s and ms at most once, as in '1h30m'"
        raise _invalid(text, "it names a unit twice", hint)
    seconds = _seconds(text)
    if seconds <= 0 or seconds < min_seconds:
        raise _invalid(text, f"the shortest schedule is {min_seconds:g}s", "raise it, or lower min_schedule_seconds")
    if seconds > MAX_DURATION_SECONDS:
        raise _invalid(text, "it is longer than a hundred years", "suspend a table that should not be refreshed")
    return seconds


def _seconds(text: str) -> float:
    """The length of a duration; counted in whole milliseconds, so that nothing is rounded on the way."""
    return sum(int(number) * _UNIT_MILLISECONDS[unit] for number, unit in _PART.findall(text)) / 1_000


def _cron(text: str) -> str:
    """The 5 or 6 fields of a valid expression that fires at least once in fifty years."""
    if text.startswith("@"):
        if text.lower() not in _ALIASES:
            raise _invalid(text, "there is no such alias", "use one of " + ", ".join(_ALIASES))
        return _ALIASES[text.lower()]
    fields = text.split()
    if len(fields) not in (5, 6):
        raise _invalid(text, f"it has {len(fields)} fields", _HINT)
    if not all(_CRON_FIELDS.fullmatch(f) for f in fields):
        raise _invalid(text, "a field contains an invalid character", _HINT)
    cron = " ".join(fields)
    try:
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as e:
        raise _invalid(text, str(e).lower(), "the fields are [second] minute hour day month weekday") from e
    except StopIteration as e:
        raise _invalid(text, "it matches no date within fifty years", "check the day and month") from e
    return cron


def _known_zone(name: str) -> str:
    zone_of(name)
    return name


def _hint_for(text: str) -> str:
    """What the user most likely meant."""
    if re.fullmatch(r"[0-9]+", text):
        return f"write the unit: '{text}s' or '{text}m'"
    if _DURATION.fullmatch(text.lower()):
        return f"write units in lower case: '{text.lower()}'"
    if re.fullmatch(r"[0-9]*\.[0-9]+[wdhms]", text):
        return "write whole numbers, as in '1h30m'"
    return _HINT


def _invalid(text: str, why: str, hint: str) -> MillstreamError:
    return MillstreamError(Code.SCHEDULE_INVALID, f"{text[:80]!r} is not a schedule: {why}", hint=hint)
