"""A machine that refreshes simulated tables as `decide` says: a clock, slots, durations and failures, and no waiting.

It does what the daemon does, in a few lines: it asks for a decision whenever a refresh ends or it is time to, starts
the passes, and gives free slots to the refreshes whose inputs are done, the earliest deadline first. On the way it
checks what must hold in every simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from millstream.errors import Code
from millstream.results import Status
from millstream.scheduler.backoff import NO_BACKOFF, after_failure
from millstream.scheduler.dag import Dag
from millstream.scheduler.failures import class_of
from millstream.scheduler.lake_view import LakeView, TableView, expected_seconds
from millstream.scheduler.policy import Decision, PassPlan, decide
from millstream.scheduler.schedule import Schedule

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class Refreshed:
    """One refresh: when its frontier was taken, when it began and ended by the true time, and how."""

    table: str
    pass_number: int
    frontier_at: float
    begun: float
    ended: float
    code: Code | None
    deadline: datetime | None
    lateness: float | None
    """The seconds between its deadline and its end, by the clock; negative if it was early."""


@dataclass
class RunningPass:
    number: int
    plan: PassPlan
    begun: float
    frontier: datetime
    pending: list[str]
    done: set[str] = field(default_factory=set)


@dataclass
class Machine:
    """A lake of simulated tables.

    Args:
        sources: what each table reads.
        schedules: the schedule of each table, as users write it.
        duration: how long the n-th refresh of a table takes.
        failure: the code with which a refresh of a table fails at a time in seconds, or None.
        jumps: by how much the clock jumps, and when, in seconds.
    """

    sources: Mapping[str, list[str]]
    schedules: Mapping[str, str]
    duration: Callable[[str, int], float]
    slots: int = 1
    failure: Callable[[str, float], Code | None] = lambda _name, _at: None
    jumps: tuple[tuple[float, float], ...] = ()
    max_errors: int = 3
    is_measured: bool = True
    """Whether the tables have a history from which durations are expected."""

    def __post_init__(self) -> None:
        self.dag = Dag.build(self.sources)
        parsed = {name: Schedule.parse(text) for name, text in self.schedules.items()}
        effective = self.dag.effective_schedules(parsed)
        self.tables = {
            name: TableView(name=name, schedule=effective[name], is_populated=False, created_at=START)
            for name in self.sources
        }
        self.history = {name: [self.duration(name, 0)] * 3 if self.is_measured else [] for name in self.sources}
        self.errors = dict.fromkeys(self.sources, 0)
        self.time = 0.0
        self.running: dict[str, tuple[float, float, RunningPass]] = {}
        self.passes: list[RunningPass] = []
        self.refreshes: list[Refreshed] = []
        self.decisions: list[tuple[float, Decision]] = []
        self.numbers = itertools.count()
        self.most_at_once = 0

    def clock(self) -> datetime:
        """What the machine's clock shows."""
        return START + timedelta(seconds=self.time + sum(by for at, by in self.jumps if at <= self.time))

    def run(self, until: float) -> Machine:
        """Go on until a time in seconds."""
        while self.time < until:
            decision = self._decide()
            for plan in decision.passes:
                self._start(plan)
            self._fill_slots()
            sleep = max(0.001, (decision.wake_at - self.clock()).total_seconds())
            ends = [end for _, end, _ in self.running.values()]
            self.time = min([self.time + sleep, *ends, until])
            for name, (begun, end, running) in sorted(self.running.items()):
                if end <= self.time:
                    self._end(name, begun, running)
        return self

    def of(self, name: str) -> list[Refreshed]:
        """The refreshes of a table."""
        return [r for r in self.refreshes if r.table == name]

    def _decide(self) -> Decision:
        ready = sum(len(self._ready(p)) for p in self.passes)
        view = LakeView(
            now=self.clock(),
            tables={
                name: replace(table, expected_seconds=expected_seconds(self.history[name]))
                for name, table in self.tables.items()
            },
            dag=self.dag,
            slots=self.slots,
            free_slots=max(0, self.slots - len(self.running) - ready),
        )
        decision = decide(view)
        assert decision == decide(view)  # nothing but the view counts
        assert decision.wake_at > view.now
        self.decisions.append((self.time, decision))
        return decision

    def _start(self, plan: PassPlan) -> None:
        assert len(set(plan.tables)) == len(plan.tables)
        assert plan.due <= set(plan.tables)
        seen: set[str] = set()
        for level in plan.levels:
            for name in level:
                assert not self.tables[name].is_running, f"{name} would be refreshed beside itself"
                assert set(plan.tables).intersection(self.dag.upstream([name])) <= seen
            seen.update(level)
        running = RunningPass(next(self.numbers), plan, self.time, self.clock(), list(plan.tables))
        self.passes.append(running)
        for name in plan.tables:
            self.tables[name] = replace(self.tables[name], running_since=running.frontier)

    def _ready(self, running: RunningPass) -> list[str]:
        """The tables of a pass whose inputs are done and that have no slot yet."""
        open_tables = set(running.pending).union(n for n, (_, _, p) in self.running.items() if p is running)
        return [n for n in running.pending if not open_tables.intersection(self.dag.upstream([n]))]

    def _fill_slots(self) -> None:
        ready = [(running, name) for running in self.passes for name in self._ready(running)]
        ready.sort(key=lambda r: (r[0].plan.deadlines[r[1]] or r[0].frontier, r[0].number))
        for running, name in ready[: self.slots - len(self.running)]:
            running.pending.remove(name)
            assert name not in self.running
            seconds = self.duration(name, len(self.of(name)))
            self.running[name] = (self.time, self.time + seconds, running)
        self.most_at_once = max(self.most_at_once, len(self.running))
        assert len(self.running) <= self.slots

    def _end(self, name: str, begun: float, running: RunningPass) -> None:
        del self.running[name]
        code, deadline, clock = self.failure(name, self.time), running.plan.deadlines[name], self.clock()
        lateness = (clock - deadline).total_seconds() if deadline is not None else None
        self.refreshes.append(
            Refreshed(name, running.number, running.begun, begun, self.time, code, deadline, lateness)
        )
        table = replace(self.tables[name], running_since=None, ended_at=clock)
        if code is None:
            self.history[name].append(self.time - begun)
            self.errors[name] = 0
            at = running.frontier
            table = replace(table, data_timestamp=self._shown(name, at), refreshed_at=at, is_populated=True)
            table = replace(table, backoff=NO_BACKOFF)
        else:
            table = self._failed(table, code, clock)
            for reader in [n for n in running.pending if name in self.dag.upstream([n])]:
                running.pending.remove(reader)
                self.tables[reader] = replace(self.tables[reader], running_since=None)
        self.tables[name] = table
        running.done.add(name)
        if not running.pending and not any(p is running for _, _, p in self.running.values()):
            self.passes.remove(running)

    def _shown(self, name: str, frontier: datetime) -> datetime:
        """The time a table's contents stand for: an upstream table on cron keeps it at its own."""
        read = [self.tables[s] for s in self.dag.sources(name) if s in self.tables]
        return min([frontier, *(t.data_timestamp for t in read if t.is_on_cron and t.data_timestamp is not None)])

    def _failed(self, table: TableView, code: Code, now: datetime) -> TableView:
        failure = after_failure(table.backoff, class_of(code), now, 0.5)
        self.errors[table.name] += failure.counts
        status = Status.ERROR if self.errors[table.name] >= self.max_errors else table.status
        return replace(table, backoff=failure.backoff, status=status)
