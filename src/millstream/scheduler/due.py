"""When each table is due, and how urgent it is. Pure; all times are seconds from now.

A duration says how old contents may be. A refresh shows the contents of the moment it starts when it ends, so it has to
start early: by its expected duration, that of the stream tables refreshed before it, and that of others that need the
slots at the same time (`latest_starts`). Two bounds keep this from becoming a load of its own: most of a period passes
between two refreshes (`MIN_PERIOD_SHARE`), and a table that takes too long for its schedule rests after each refresh
for as long as it took.

A cron expression says when. The times that were missed, because nothing was running or the clock jumped, are made up
for by one refresh.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from millstream.scheduler.lake_view import LakeView, TableView
from millstream.scheduler.latest_starts import Job, latest_starts, path_seconds
from millstream.scheduler.schedule import Schedule

MARGIN_SHARE = 0.1
"""How much of its period before its deadline a refresh should end: a slot may be busy when it has to start."""
MIN_PERIOD_SHARE = 0.7
"""How much of its period passes between two refreshes at least, however crowded the deadlines are."""
JOIN_SHARE = 0.1
"""How much of its period earlier a table is refreshed, at most, if something else is due already."""
MAX_REST_PERIODS = 4
"""How many of its periods a table rests at most, because its expected duration may be wrong."""


@dataclass(frozen=True, slots=True)
class Due:
    """When a table is due.

    Attributes:
        at: when its pass should start; infinite if it is not refreshed by itself.
        joins_at: from when it is refreshed if something else is due: the loop then wakes less often. Never after `at`.
        urgency: when it should have been refreshed; the least is served first. It does not move while the table waits.
        deadline: when its contents become too old; None for cron, and before the first refresh.
        path: how long its refresh takes, with everything that is refreshed before it.
    """

    at: float
    joins_at: float
    urgency: float
    deadline: datetime | None
    path: float


def due_times(view: LakeView, waiting: Collection[str]) -> dict[str, Due]:
    """When each table is due, regardless of whether it can be refreshed.

    Args:
        waiting: tables that cannot be refreshed now, and do not compete for slots.
    """
    read = view.refreshed_with()
    order = [name for name in view.dag.nodes if name in view.tables]
    paths = path_seconds(order, {name: table.expected_seconds for name, table in view.tables.items()}, read)
    starts = latest_starts(order, _jobs(view, waiting), read, paths, view.slots)
    return {name: _with_serving(view, name, _due(view, view.tables[name], paths[name], starts)) for name in order}


def _jobs(view: LakeView, waiting: Collection[str]) -> dict[str, Job]:
    """The refreshes that durations will require."""
    jobs: dict[str, Job] = {}
    for name, table in view.tables.items():
        deadline = _deadline(view, table)
        if name not in waiting and deadline is not None:
            jobs[name] = Job(table.expected_seconds, _goal(view, table, deadline))
    return jobs


def _with_serving(view: LakeView, name: str, due: Due) -> Due:
    """A table that could not be served is refreshed when that is retried, if its schedule does not say so earlier."""
    serving = view.tables[name].serving
    if serving.retry_at is None:
        return due
    at = min(due.at, serving.wait_seconds(view.now))
    urgency = min(due.urgency, view.seconds_until(serving.retry_at))
    return replace(due, at=at, joins_at=min(due.joins_at, at), urgency=urgency)


def _due(view: LakeView, table: TableView, path: float, starts: Mapping[str, float]) -> Due:
    schedule, since = table.schedule, table.current_since
    if schedule is None:
        return Due(math.inf, math.inf, math.inf, None, path)
    period = float(schedule.seconds or 0)
    if since is None:
        waits = view.seconds_until(table.created_at) if table.created_at is not None else -math.inf
        return Due(0.0, 0.0, waits, None, path)
    if since > view.now:  # the clock was set back: nothing can be derived from that time
        return Due(0.0, 0.0, -math.inf, None, path)
    deadline = schedule.deadline(since)
    if deadline is None:
        return _due_by_cron(view, table, schedule, since, path)
    latest = starts.get(table.name, _goal(view, table, deadline) - path)
    earliest = view.seconds_until(since) + MIN_PERIOD_SHARE * period
    if path > (1 - MIN_PERIOD_SHARE) * period:
        earliest = max(earliest, _rested(view, table, path, period))
    at, joins_at = max(latest, earliest), max(latest - JOIN_SHARE * period, earliest)
    return Due(at, joins_at, view.seconds_until(deadline), deadline, path)


def _due_by_cron(view: LakeView, table: TableView, schedule: Schedule, since: datetime, path: float) -> Due:
    fires = _fires_after(schedule, since)
    if fires is None:
        return Due(math.inf, math.inf, math.inf, None, path)
    at = view.seconds_until(fires)
    if table.ended_at is not None and fires < table.ended_at:  # it fired while the last refresh was running
        following = _fires_after(schedule, fires)
        gap = (following - fires).total_seconds() if following is not None else math.inf
        at = max(at, _rested(view, table, path, gap))
    return Due(at, at, view.seconds_until(fires), None, path)


def _rested(view: LakeView, table: TableView, path: float, period: float) -> float:
    """When a table has rested after its last refresh for as long as it takes; a retry after a failure needs no rest."""
    if table.ended_at is None or table.ended_at > view.now or table.backoff.attempts:
        return -math.inf
    return view.seconds_until(table.ended_at) + min(path, MAX_REST_PERIODS * period)


def _deadline(view: LakeView, table: TableView) -> datetime | None:
    """When a table on a duration becomes too old; None if it has no contents, or contents from the future."""
    since = table.current_since
    if table.schedule is None or since is None or since > view.now:
        return None
    return table.schedule.deadline(since)


def _goal(view: LakeView, table: TableView, deadline: datetime) -> float:
    """When the next refresh of a table should end."""
    period = (table.schedule.seconds or 0) if table.schedule is not None else 0
    return view.seconds_until(deadline) - MARGIN_SHARE * period


@lru_cache(maxsize=4096)
def _fires_after(schedule: Schedule, moment: datetime) -> datetime | None:
    """When a cron expression fires next after a moment; kept, because it is asked for at every decision."""
    return schedule.next_due(moment, moment)
