"""Computes when a cron expression fires in a time zone with daylight saving time. Pure.

The rules are those of Vixie cron, also for expressions with a seconds field. If the minute and the hour are both fixed,
i.e. do not begin with `*`, the expression names local times: a local time that occurs twice fires the first time only,
and the local times that a clock change skips fire once, together, right after the change. Any other expression fires
whenever the local time matches it: throughout an hour that occurs twice, and never in an hour that is skipped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim

from millstream.errors import Code, MillstreamError

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])([0-9]{1,2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?)")
_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)


def zone_of(name: str) -> tzinfo:
    """A time zone, by any name that Spark accepts for the session time zone.

    Raises:
        MillstreamError: SETTING_INVALID.
    """
    if name in ("UTC", "GMT", "UT", "Z"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes, seconds = found.groups(default="0")
        size = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        if size < _DAY:
            return timezone(-size if sign == "-" else size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise MillstreamError(
            Code.SETTING_INVALID, f"unknown time zone {name!r}", hint="use a name such as Europe/Berlin"
        ) from e


def next_fire(cron: str, moment: datetime, zone: tzinfo) -> datetime | None:
    """When a valid cron expression fires first after a moment; None if not within fifty years."""
    hour, minute = (-4, -5)
    fields = cron.split()
    is_given = not fields[hour].startswith("*") and not fields[minute].startswith("*")
    return _next_given(cron, moment, zone) if is_given else _next_agreeing(cron, moment, zone)


def _next_given(cron: str, moment: datetime, zone: tzinfo) -> datetime | None:
    """The next firing of an expression that names local times: each fires once."""
    for shown in CronSim(cron, _wall(moment, zone)):
        fires = _first_at(shown, zone)
        if fires > moment:  # otherwise it fired before the clock was set back
            return fires
    return None


def _next_agreeing(cron: str, moment: datetime, zone: tzinfo) -> datetime | None:
    """The next local time that matches: between two clock changes, local time is UTC plus a constant offset."""
    since, start = moment, _wall(moment, zone)
    while (shown := next(CronSim(cron, start), None)) is not None:
        fires = (shown - _offset(since, zone)).replace(tzinfo=UTC)
        changed = _next_change(since, fires, zone)
        if changed is None:
            return fires
        since, start = changed, _wall(changed, zone) - _SECOND
    return None


def _first_at(shown: datetime, zone: tzinfo) -> datetime:
    """When a local time occurs first, or the moment of the clock change that skips it."""
    before = shown.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(before, zone) == shown:
        return before
    after = shown.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _next_change(after, before, zone) or before


def _next_change(since: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """The first change of the offset between two moments, to the second; None if there is none."""
    low = since
    while low < until:
        high = min(low + _DAY, until)
        if _offset(low, zone) != _offset(high, zone):
            break
        low = high
    else:
        return None
    first = _offset(low, zone)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (middle, high) if _offset(middle, zone) == first else (low, middle)
    return high.replace(microsecond=0)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)
