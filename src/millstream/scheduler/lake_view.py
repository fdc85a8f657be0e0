"""What the policy knows about a lake when it decides: one frozen record of the catalog and the clock. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.results import Status
from millstream.scheduler.backoff import NO_BACKOFF, Backoff
from millstream.scheduler.dag import Dag
from millstream.scheduler.schedule import Schedule, ScheduleKind

HISTORY = 20
"""How many of the newest refreshes an expected duration is taken from."""
PERCENTILE = 0.9


def expected_seconds(durations: Sequence[float]) -> float:
    """How long the next refresh of a table takes, at most, by the durations of its last ones, oldest first.

    It is the 90th percentile of the last twenty, and 0 without any. Leave out refreshes of another kind than the next
    one: after the initial load of an hour, a differential refresh does not take an hour.

    >>> expected_seconds([100.0] * 5 + [1.0] * 19 + [7.0])
    1.0
    """
    recent = sorted(durations[-HISTORY:])
    return recent[math.ceil(PERCENTILE * len(recent)) - 1] if recent else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A stream table, as far as the policy is concerned.

    Attributes:
        schedule: the effective schedule (`Dag.effective_schedules`); None if it is refreshed on demand or with its
            dependents only.
        data_timestamp: the time its contents stand for.
        refreshed_at: when the frontier of its last successful refresh was taken, if that is not its data timestamp: an
            upstream table on cron keeps its dependents at an older frontier.
        ended_at: when its last refresh ended, successfully or not.
        created_at: since when it waits for its first refresh.
        running_since: when the pass began in which it is being refreshed, or will be; None if it is in none.
        expected_seconds: how long its next refresh takes, from `expected_seconds`.
        serving: the failures to serve it; they keep nothing else waiting.
    """

    name: str
    schedule: Schedule | None
    status: Status = Status.ACTIVE
    is_populated: bool = True
    data_timestamp: datetime | None = None
    refreshed_at: datetime | None = None
    ended_at: datetime | None = None
    created_at: datetime | None = None
    running_since: datetime | None = None
    expected_seconds: float = 0.0
    backoff: Backoff = NO_BACKOFF
    serving: Backoff = NO_BACKOFF

    @property
    def is_running(self) -> bool:
        """Whether a pass that has not ended refreshes it."""
        return self.running_since is not None

    @property
    def is_on_cron(self) -> bool:
        """Whether it is refreshed at its own times only, and not with its dependents."""
        return self.schedule is not None and self.schedule.kind is ScheduleKind.CRON

    @property
    def current_since(self) -> datetime | None:
        """When it was last brought up to date; None if it has no contents."""
        return (self.refreshed_at or self.data_timestamp) if self.is_populated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeView:
    """A lake at one moment.

    Attributes:
        tables: every stream table of `dag`, by name.
        slots: how many refreshes may run at the same time.
        free_slots: how many more could start now. Those that a running pass will need do not count as free.
        is_enabled: false if the scheduler is disabled or paused.
    """

    now: datetime
    tables: Mapping[str, TableView]
    dag: Dag
    slots: int
    free_slots: int
    is_enabled: bool = True

    def __post_init__(self) -> None:
        if self.tables.keys() != self.dag.stream_tables:
            raise ValueError(f"tables and graph differ: {sorted(self.tables.keys() ^ self.dag.stream_tables)}")
        if self.slots < 1:
            raise ValueError(f"{self.slots} slots cannot refresh anything")

    def seconds_until(self, moment: datetime) -> float:
        """The seconds from now to a moment; negative if it is past."""
        return (moment - self.now).total_seconds()

    def with_refreshed(self, names: Collection[str], at: datetime) -> LakeView:
        """The lake at a later time, at which some tables were brought up to date."""
        refreshed = {
            name: replace(self.tables[name], data_timestamp=at, refreshed_at=at, ended_at=at, backoff=NO_BACKOFF)
            for name in names
        }
        return replace(self, now=at, tables={**self.tables, **refreshed})

    def refreshed_with(self) -> dict[str, tuple[str, ...]]:
        """By stream table: the stream tables it reads directly that are refreshed before it, i.e. those not on cron.

        A cycle is refreshed as one unit: by the schedule of any of its members, after what any of them reads.
        """
        return {
            name: tuple(sorted(s for s in self.dag.outside_sources.get(name, ()) if self._is_refreshed_with(s)))
            for name in self.tables
        }

    def _is_refreshed_with(self, source: str) -> bool:
        return any(not self.tables[peer].is_on_cron for peer in self.dag.with_peers([source]) if peer in self.tables)
