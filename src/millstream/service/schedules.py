"""The schedules of stream tables, in the time zones their queries were defined in."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.catalog.models import StreamTable
from millstream.scheduler.schedule import Schedule

_TIME_ZONE = "spark.sql.session.timeZone"


def checked_schedule(text: str, semantics: Mapping[str, str], min_seconds: float = 0) -> Schedule:
    """A schedule for a query that is defined under the given session settings.

    Args:
        min_seconds: the shortest duration allowed to somebody who declares it; one that is recorded is as it is.

    Raises:
        MillstreamError: SCHEDULE_INVALID; SETTING_INVALID for a cron expression in a time zone only Java knows.
    """
    return Schedule.parse(text, min_seconds=min_seconds, time_zone=semantics.get(_TIME_ZONE, "UTC"))


def schedule_of(table: StreamTable) -> Schedule:
    """The schedule of a stream table."""
    return checked_schedule(table.schedule, table.definition.settings)
