"""When refreshes have to start at the latest so that all of them end in time: a list schedule, built backwards. Pure.

The refresh with the latest deadline is placed first, as late as possible in one of the slots; each one before it ends
where the ones after it begin, and before every refresh that reads its result. If there is time enough, this delays
nothing: each starts as late as if it were alone. Where deadlines crowd, the earlier ones start earlier.

All times are seconds from now.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """The next refresh of a table: how long it takes, and when it must have ended."""

    seconds: float
    goal: float


def path_seconds(
    order: Sequence[str], seconds: Mapping[str, float], read: Mapping[str, Collection[str]]
) -> dict[str, float]:
    """How long it takes to refresh each table after everything that is refreshed with it, with slots enough.

    Args:
        order: all tables, each after those it reads.
        read: the tables that are refreshed with each table, directly.
    """
    found: dict[str, float] = {}
    for name in order:
        found[name] = seconds[name] + max((found[source] for source in read[name]), default=0.0)
    return found


def latest_starts(
    order: Sequence[str],
    jobs: Mapping[str, Job],
    read: Mapping[str, Collection[str]],
    paths: Mapping[str, float],
    slots: int,
) -> dict[str, float]:
    """When the pass of each table has to start at the latest, so that every job reaches its goal.

    A table whose refresh is needed for a dependent before its own goal starts with that dependent; its own time is that
    of its goal.

    Args:
        order: all tables, each after those it reads.
        jobs: the next refreshes, by table; not every table needs one.
        read: the tables that are refreshed with each table, directly.
        paths: from `path_seconds`.
    """
    dependents: dict[str, list[str]] = {}
    for name in jobs:
        for source in read[name]:
            dependents.setdefault(source, []).append(name)
    ends = _latest_ends(order, jobs, dependents)
    place = {name: number for number, name in enumerate(order)}
    slots_begin = [-math.inf] * slots  # negated, so that the heap gives the latest
    starts: dict[str, float] = {}
    for name in sorted(jobs, key=lambda n: (ends[n], place[n]), reverse=True):
        needed = min((starts[d] for d in dependents.get(name, ())), default=math.inf)
        starts[name] = min(ends[name], needed, -slots_begin[0]) - jobs[name].seconds
        heapq.heapreplace(slots_begin, -starts[name])
    passes: dict[str, float] = {}
    for name in order:
        if name in jobs:
            # A source with an earlier goal of its own is refreshed for that, and again with this table.
            begins = (
                passes[source] if source in jobs and starts[name] <= jobs[source].goal else starts[name] - paths[source]
                for source in read[name]
            )
            passes[name] = min(begins, default=starts[name])
    return {
        name: job.goal - paths[name] if any(starts[d] <= job.goal for d in dependents.get(name, ())) else passes[name]
        for name, job in jobs.items()
    }


def _latest_ends(
    order: Sequence[str], jobs: Mapping[str, Job], dependents: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """When each job must have ended, for itself and for the jobs that read its result."""
    ends: dict[str, float] = {}
    for name in reversed(order):
        if name in jobs:
            needed = (ends[d] - jobs[d].seconds for d in dependents.get(name, ()))
            ends[name] = min(jobs[name].goal, min(needed, default=math.inf))
    return ends
