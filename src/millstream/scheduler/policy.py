"""Decides what a lake refreshes now, in which order, and when to ask again. Pure: the loop that asks has the clock.

One pass refreshes one connected component: due tables, the stream tables they read that are not on cron, and everything
due that shares a table with them. It takes one frontier, so its tables agree. Components never wait for each other, and
a pass goes on without a table that is still running, and without that table's dependents. Where slots are short, the
earliest deadline goes first. A deadline does not move while a table waits for it, so every table gets its turn.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby

from millstream.scheduler.due import Due, due_times
from millstream.scheduler.finish_estimates import finish_estimates
from millstream.scheduler.lake_view import LakeView
from millstream.scheduler.waits import Wait, WaitReason, find_waits

MAX_SLEEP_SECONDS = 60.0
"""How long the loop sleeps at most, so that it notices a clock that jumps."""
LOOK_SHARE = 0.5
"""How much of its period earlier a table is looked at, at most, if something else is due already."""
MIN_SLEEP_SECONDS = 0.001
"""Times that are closer are the same: a sleep may end a little early."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """A set of tables to refresh at one frontier.

    Attributes:
        levels: the tables, each in a later level than those it reads; within a level, the most urgent first.
        due: those that are refreshed for their own schedules; the others are refreshed because these read them.
        deadlines: by table: when its contents become too old, None if there is no such time.
    """

    levels: tuple[tuple[str, ...], ...]
    due: frozenset[str]
    deadlines: Mapping[str, datetime | None]

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables of the pass, in the order of its levels."""
        return tuple(name for level in self.levels for name in level)


@dataclass(frozen=True, slots=True)
class MissedDeadline:
    """A table whose deadline cannot be kept, and when its refresh is expected to end instead."""

    table: str
    deadline: datetime
    expected_at: datetime


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    Attributes:
        passes: what to start now, the most urgent first.
        queued: passes that are due and for which no slot is free, the most urgent first. They are decided again when a
            slot is; what has no changes to read needs none.
        wake_at: when to ask again at the latest; ask earlier when a refresh ends, fails or a definition changes.
        early: tables that are due soon, with their deadlines, in the order of the graph. If a look finds that they need
            no refresh, they need not be looked at by themselves soon after.
        missed: tables whose deadlines cannot be kept, by name; the same miss is reported by every decision.
        waiting: by table: the table that it waits for. A running one is waited for only by tables that are due.
    """

    passes: tuple[PassPlan, ...]
    queued: tuple[PassPlan, ...]
    wake_at: datetime
    missed: tuple[MissedDeadline, ...]
    waiting: Mapping[str, Wait]
    early: Mapping[str, datetime | None] = field(default_factory=dict)

    @property
    def looked_at(self) -> dict[str, datetime | None]:
        """All tables that are worth a look now, with their deadlines."""
        found = dict(self.early)
        for plan in (*self.passes, *self.queued):
            found |= plan.deadlines
        return found


def decide(view: LakeView) -> Decision:
    """Decide which passes start now."""
    waits = find_waits(view)
    due = due_times(view, waits)
    waiting = {
        name: wait
        for name, wait in waits.items()
        if wait.table != name and (wait.reason is not WaitReason.RUNNING or due[name].at <= 0)
    }
    if not view.is_enabled:
        return Decision((), (), _after(view, MAX_SLEEP_SECONDS), (), waiting)
    plans = _plans(view, due, waits)
    fitting = _fitting(plans, view.free_slots)
    planned = {name for plan in plans for name in plan.tables}
    return Decision(
        tuple(plans[:fitting]),
        tuple(plans[fitting:]),
        _wake_at(view, due, waits, planned),
        _missed(view, due, waits, plans),
        waiting,
        _early(view, due, waits, planned) if plans else {},
    )


def after_look(decision: Decision, view: LakeView, unchanged: Collection[str], at: datetime) -> Decision:
    """What is still to do after a look at all tables that are due has found that some need no refresh.

    Args:
        view: what was decided about.
        at: the time for which the unchanged tables are up to date now.
    """
    if not unchanged:
        return decision
    due = [_remaining(plan, unchanged) for plan in (*decision.passes, *decision.queued)]
    plans = [plan for plan in due if plan is not None]
    fitting = _fitting(plans, view.free_slots)
    return replace(
        decision,
        passes=tuple(plans[:fitting]),
        queued=tuple(plans[fitting:]),
        wake_at=min(decision.wake_at, decide(view.with_refreshed(unchanged, at)).wake_at),
        missed=tuple(m for m in decision.missed if m.table not in unchanged or m.deadline <= view.now),
    )


def _remaining(plan: PassPlan, unchanged: Collection[str]) -> PassPlan | None:
    """A plan without tables that need no refresh; None if it has no others."""
    levels = tuple(tuple(name for name in level if name not in unchanged) for level in plan.levels)
    levels = tuple(level for level in levels if level)
    return replace(plan, levels=levels, due=plan.due.difference(unchanged)) if levels else None


def _plans(view: LakeView, due: Mapping[str, Due], waits: Mapping[str, Wait]) -> list[PassPlan]:
    """A pass for each component of the tables that are due, the most urgent first."""
    if not any(d.at <= MIN_SLEEP_SECONDS for name, d in due.items() if name not in waits):
        return []
    read = view.refreshed_with()
    chosen, included = _chosen(view, due, waits, read)
    level_of = {name: number for number, level in enumerate(view.dag.levels(included)) for name in level}
    plans: list[tuple[float, PassPlan]] = []
    for component in view.dag.components(included):
        due_here = chosen.intersection(component)
        urgency = _urgencies(view, due, component, read)
        levels = _levels(component, level_of, urgency)
        deadlines = {name: due[name].deadline for name in component}
        plans.append((min(urgency.values()), PassPlan(levels, frozenset(due_here), deadlines)))
    return [plan for _, plan in sorted(plans, key=lambda p: (p[0], p[1].levels))]


def _chosen(
    view: LakeView, due: Mapping[str, Due], waits: Mapping[str, Wait], read: Mapping[str, Sequence[str]]
) -> tuple[set[str], set[str]]:
    """The tables that are refreshed for their own schedules, and all tables that are refreshed.

    They include each table on a duration that becomes due while something it reads is being refreshed: it would have to
    wait for that, and then need it once more.
    """
    chosen = {name for name, d in due.items() if name not in waits and d.joins_at <= MIN_SLEEP_SECONDS}
    included = _with_upstream(view, chosen, read)
    for name in view.dag.nodes:
        if name in due and name not in waits and name not in chosen and due[name].deadline is not None:
            ready_at = max((due[source].path for source in read[name] if source in included), default=-math.inf)
            if due[name].at <= ready_at:
                chosen.add(name)
                included |= _with_upstream(view, [name], read)
    return chosen, included


def _early(
    view: LakeView, due: Mapping[str, Due], waits: Mapping[str, Wait], planned: set[str]
) -> dict[str, datetime | None]:
    """The tables on durations that have passed most of the time until they are due, with what they read.

    Two tables on one schedule that are refreshed at different times are then looked at together from now on.
    """
    soon: set[str] = set()
    for name, table in view.tables.items():
        period = table.schedule.seconds if table.schedule is not None else None
        if period is not None and name not in waits and due[name].at <= LOOK_SHARE * period:
            soon.add(name)
    found = _with_upstream(view, soon, view.refreshed_with()) - planned
    return {name: due[name].deadline for name in view.dag.nodes if name in found}


def _with_upstream(view: LakeView, names: Iterable[str], read: Mapping[str, Sequence[str]]) -> set[str]:
    """Tables, and all that is refreshed with them."""
    found = view.dag.with_peers(names)
    open_names = list(found)
    while open_names:
        new = view.dag.with_peers(read[open_names.pop()]) - found
        found |= new
        open_names += new
    return found


def _levels(
    component: Iterable[str], level_of: Mapping[str, int], urgency: Mapping[str, float]
) -> tuple[tuple[str, ...], ...]:
    """The tables of one component by levels, and within a level by urgency."""
    ordered = sorted(component, key=lambda name: (level_of[name], urgency[name], name))
    return tuple(tuple(level) for _, level in groupby(ordered, key=level_of.__getitem__))


def _urgencies(
    view: LakeView, due: Mapping[str, Due], component: Sequence[str], read: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """When each table of a pass should have been refreshed, for itself and for the tables that read it."""
    found = {name: due[name].urgency for name in component}
    for name in reversed(component):
        begins = found[name] - view.tables[name].expected_seconds
        for source in read[name]:
            found[source] = min(found[source], begins)
    return found


def _fitting(plans: Sequence[PassPlan], free_slots: int) -> int:
    """How many passes find a slot; each takes as many as its widest level has tables, if there are as many."""
    for number, plan in enumerate(plans):
        if free_slots <= 0:
            return number
        free_slots -= max(len(level) for level in plan.levels)
    return len(plans)


def _missed(
    view: LakeView, due: Mapping[str, Due], waits: Mapping[str, Wait], plans: Sequence[PassPlan]
) -> tuple[MissedDeadline, ...]:
    """Deadlines that running refreshes, and those that are due or wait for running ones, are not expected to keep."""
    ends = finish_estimates(view, [name for plan in plans for name in plan.tables])
    for name, wait in waits.items():
        if wait.reason is WaitReason.RUNNING and wait.table != name and due[name].at <= 0:
            ends[name] = ends[wait.table] + view.tables[name].expected_seconds
    found: list[MissedDeadline] = []
    for name, end in sorted(ends.items()):
        deadline, expected_at = due[name].deadline, _after(view, end)
        if deadline is not None and expected_at > deadline:
            found.append(MissedDeadline(name, deadline, expected_at))
    return tuple(found)


def _wake_at(view: LakeView, due: Mapping[str, Due], waits: Mapping[str, Wait], planned: set[str]) -> datetime:
    """When something is due or retried next. What waits for a slot or another table is started when a refresh ends."""
    times = [d.at for name, d in due.items() if name not in waits and name not in planned]
    retries = [table.backoff.wait_seconds(view.now) for table in view.tables.values()]
    soonest = min(
        [at for at in times if at > MIN_SLEEP_SECONDS] + [max(left, MIN_SLEEP_SECONDS) for left in retries if left > 0],
        default=math.inf,
    )
    return _after(view, min(soonest, MAX_SLEEP_SECONDS))


def _after(view: LakeView, seconds: float) -> datetime:
    return view.now + timedelta(seconds=seconds)
