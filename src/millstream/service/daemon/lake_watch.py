"""What the policy needs to know about a lake, read from the catalog at each wake.

Graph and schedules are read again only if a definition has changed; how long refreshes take is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile

from millstream.catalog import Catalog
from millstream.catalog.models import Refresh
from millstream.catalog.pulse import Pulse
from millstream.errors import Code
from millstream.naming import TableName
from millstream.results import Action, RefreshStatus, Status
from millstream.scheduler.backoff import NO_BACKOFF, Backoff, delay_seconds
from millstream.scheduler.dag import Dag
from millstream.scheduler.lake_view import HISTORY, LakeView, TableView, expected_seconds
from millstream.scheduler.schedule import Schedule
from millstream.scheduler.serving_retries import SERVED, Unserved
from millstream.service.replacing import dag_of
from millstream.service.schedules import schedule_of

_FROM_SCRATCH = (Action.FULL, Action.REINITIALIZE)


@dataclass(frozen=True)
class _Definitions:
    """What changes only with definitions."""

    generation: int
    dag: Dag
    schedules: Mapping[str, Schedule | None]


@dataclass
class LakeWatch:
    """Reads a lake for the policy.

    Args:
        running: the passes that are running: their tables, and when each began.
        backoffs: the tables whose last refreshes have failed.
        unserved: the tables that were refreshed, but could not be served.
    """

    catalog: Catalog
    slots: int
    running: dict[str, datetime] = field(default_factory=dict)
    backoffs: dict[str, Backoff] = field(default_factory=dict)
    unserved: dict[str, Unserved] = field(default_factory=dict)
    _durations: dict[str, deque[float]] = field(default_factory=dict)
    _ended: dict[str, datetime] = field(default_factory=dict)
    _refreshed: dict[str, datetime] = field(default_factory=dict)
    _definitions: _Definitions | None = None

    def pulse(self) -> Pulse:
        """The lake's tables as they are now, for `view`; the only read of the catalog if no definition has changed."""
        while True:
            pulse = self.catalog.pulse()
            if {str(row.name) for row in pulse.tables} == self._known(pulse.generation).dag.stream_tables:
                return pulse
            self._definitions = None  # a definition changed between the two reads

    def view(self, now: datetime, pulse: Pulse, *, busy_slots: int, is_enabled: bool) -> LakeView:
        """The lake as the policy sees it."""
        known = self._known(pulse.generation)
        rows = {str(row.name): row for row in pulse.tables}
        for name in rows.keys() - self._durations.keys():
            self._durations_of(name)  # a new table: its history also gives its first backoff
        tables = {
            name: TableView(
                name=name,
                schedule=known.schedules[name],
                status=row.status,
                is_populated=row.is_populated,
                data_timestamp=row.data_timestamp,
                refreshed_at=self._refreshed.get(name),
                ended_at=self._ended.get(name, row.last_refresh_at),
                created_at=row.created_at,
                running_since=self.running.get(name),
                expected_seconds=expected_seconds(list(self._durations_of(name))),
                backoff=self.backoffs.get(name, NO_BACKOFF),
                serving=self.unserved.get(name, SERVED).backoff,
            )
            for name, row in rows.items()
        }
        for name, row in rows.items():
            if row.status is Status.ERROR:  # once it is resumed, its failures are counted from the start
                self.unserved.pop(name, None)
        self._forget(known.dag)
        free = max(0, self.slots - busy_slots)
        return LakeView(now=now, tables=tables, dag=known.dag, slots=self.slots, free_slots=free, is_enabled=is_enabled)

    def refreshed(self, name: str, seconds: float, action: Action, began: datetime, at: datetime) -> None:
        """Remember when a pass brought a table up to date, and how long that took; a load does not predict the next."""
        self._refreshed[name], self._ended[name] = began, at
        self.backoffs.pop(name, None)
        if action not in _FROM_SCRATCH:
            self._durations_of(name).append(seconds)

    def failed(self, name: str, backoff: Backoff, at: datetime) -> None:
        """Remember that a refresh failed, and when it may be tried again."""
        self._ended[name] = at
        self.backoffs[name] = backoff

    def not_served(self, name: str, unserved: Unserved) -> None:
        """Remember that a refreshed table could not be served, and when that may be tried again."""
        self.unserved[name] = unserved

    def _known(self, generation: int) -> _Definitions:
        if self._definitions is None or self._definitions.generation != generation:
            dag = dag_of(self.catalog)
            schedules = {str(t.name): schedule_of(t) for t in self.catalog.list()}
            same = {name: schedule for name, schedule in schedules.items() if name in dag.stream_tables}
            self._definitions = _Definitions(generation, dag, dag.effective_schedules(same))
        return self._definitions

    def _durations_of(self, name: str) -> deque[float]:
        if name not in self._durations:
            past = self.catalog.history(TableName.parse(name), HISTORY)
            if (backoff := _after_crashes(past)) is not NO_BACKOFF:
                self.backoffs.setdefault(name, backoff)
            found = [
                r.duration_ms / 1000
                for r in reversed(past)
                if r.status is RefreshStatus.COMPLETED and r.duration_ms and r.action not in _FROM_SCRATCH
            ]
            self._durations[name] = deque(found, HISTORY)
        return self._durations[name]

    def _forget(self, dag: Dag) -> None:
        """Forget tables that were dropped."""
        for remembered in (self._durations, self._ended, self._refreshed, self.backoffs, self.unserved):
            for name in remembered.keys() - dag.stream_tables:
                del remembered[name]


def _after_crashes(newest_first: Sequence[Refresh]) -> Backoff:
    """The backoff of a table during whose last refreshes the JVM ended, perhaps because of them: others come first."""
    crashes = list(takewhile(lambda r: r.error_code == Code.JVM_LOST, newest_first))
    if not crashes or (ended := crashes[0].end_time) is None:
        return NO_BACKOFF
    return Backoff(len(crashes), ended + timedelta(seconds=delay_seconds(len(crashes), 0.5)))
