"""The loop of the daemon, the only one: it asks the policy what to start, starts it, and notes what becomes of it."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millstream.alerts.dispatch import Dispatcher
from millstream.catalog import Catalog
from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.passes.pass_request import Outcome, PassRequest
from millstream.results import InitiatedBy
from millstream.scheduler.backoff import NO_BACKOFF, after_failure
from millstream.scheduler.failures import class_of
from millstream.scheduler.lake_view import LakeView, TableView
from millstream.scheduler.policy import Decision, PassPlan, decide
from millstream.service.daemon.lake_watch import LakeWatch
from millstream.service.daemon.source_watch import SourceWatch
from millstream.service.refreshing import Refreshing
from millstream.settings import Settings

_log = logging.getLogger(__name__)

_MAINTENANCE_EVERY = timedelta(minutes=5)
_MAINTENANCE_SECONDS = 10.0
"""How long one turn of maintenance begins new work."""
_EVENTS_KEPT = timedelta(days=30)
_STALE_SCHEDULES = 2
"""After how many of its schedules a table is reported as stale."""


@dataclass(frozen=True)
class Activity:
    """What the daemon is doing, for those who watch it."""

    now: datetime
    epoch: int
    is_paused: bool
    decision: Decision
    running: Mapping[str, datetime]


@dataclass
class Daemon:
    """Keeps the stream tables of a lake fresh, while this process leads it.

    Args:
        sources: watches what the tables read while none is due.
        maintain: keeps the storage small, for about so many seconds.
        alerts: takes all events of the lake, whichever process has recorded them.
        on_activity: called after each decision.
        draw: a random number from 0 to 1, for the times of retries.
    """

    catalog: Catalog
    refreshing: Refreshing
    sources: SourceWatch
    maintain: Callable[[float], object]
    settings: Callable[[], Settings]
    clock: Callable[[], datetime]
    alerts: Dispatcher
    on_activity: Callable[[Activity], None]
    draw: Callable[[], float] = random.random
    _woken: threading.Event = field(default_factory=threading.Event)
    _missed: set[tuple[str, datetime]] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def run(self, epoch: int, stop: threading.Event) -> None:
        """Refresh what is due until `stop` is set; then wait for the passes that are running.

        Raises:
            MillstreamError: LEADERSHIP_LOST.
        """
        self.catalog.resolve_running(self.clock())
        newest = self.catalog.events(limit=1)
        last_event = newest[-1].event_id if newest else 0
        watch = LakeWatch(self.catalog, self.settings().concurrent_refreshes)
        running: dict[Future[dict[str, Outcome]], PassPlan] = {}
        upkeep = self.clock()
        # one more than passes may take: for maintenance
        with ThreadPoolExecutor(watch.slots + 1, thread_name_prefix="millstream-pass") as threads:
            while not stop.is_set():
                self._woken.clear()
                self._finish(watch, running)
                now = self.clock()
                is_paused = self.catalog.leadership().is_paused
                is_enabled = self.settings().enabled and not is_paused
                busy = sum(min(len(plan.tables), watch.slots) for plan in running.values())
                view = watch.view(now, busy_slots=busy, is_enabled=is_enabled)
                decision = decide(view)
                for plan in decision.passes:
                    watch.running |= dict.fromkeys(plan.tables, now)
                    future = threads.submit(self._pass, watch, plan)
                    running[future] = plan
                    future.add_done_callback(lambda _: self._woken.set())
                self.catalog.wake(epoch, now)
                next_look = self.sources.begin_due(now)
                self._report(view, decision)
                if events := self.catalog.events(after_id=last_event):
                    self.alerts.put(events)
                    last_event = events[-1].event_id
                self.on_activity(Activity(now, epoch, is_paused, decision, dict(watch.running)))
                if not running and not decision.passes:
                    upkeep = self._maintained(threads, upkeep, now)
                self._woken.wait(self._seconds_until(min(decision.wake_at, next_look)))
        self._finish(watch, running)

    def _maintained(self, threads: ThreadPoolExecutor, last: datetime, now: datetime) -> datetime:
        """Begin a turn of maintenance if the last one is long ago; returns when the last one began."""
        if last <= now < last + _MAINTENANCE_EVERY:
            return last
        threads.submit(self._maintain, now)
        return now

    def _maintain(self, now: datetime) -> None:
        """Keep the storage small, beside refreshes: none waits for it."""
        try:
            self.maintain(_MAINTENANCE_SECONDS)
            self.catalog.prune_events(now - _EVENTS_KEPT)
        except MillstreamError as error:
            _log.warning("maintenance ended early: %s: %s", error.code, error.message)

    def _seconds_until(self, wake_at: datetime) -> float:
        """Until the policy wants to be asked again, or a definition may have changed."""
        interval = self.settings().scheduler_interval_ms / 1000
        return max(0.0, min(interval, (wake_at - self.clock()).total_seconds()))

    def _pass(self, watch: LakeWatch, plan: PassPlan) -> dict[str, Outcome]:
        deadlines = {TableName.parse(n): at for n, at in plan.deadlines.items() if at is not None}

        def counts(name: str, error: MillstreamError) -> bool:
            before = watch.backoffs.get(name, NO_BACKOFF)
            return after_failure(before, class_of(error.code), self.clock(), 0.5).counts

        request = PassRequest(
            [TableName.parse(name) for name in plan.tables],
            InitiatedBy.SCHEDULER,
            deadlines=deadlines,
            is_waiting=False,
            counts=counts,
        )
        return self.refreshing.run_pass(request)

    def _finish(self, watch: LakeWatch, running: dict[Future[dict[str, Outcome]], PassPlan]) -> None:
        """Note what has become of the passes that have ended."""
        for future in [f for f in running if f.done()]:
            plan, now = running.pop(future), self.clock()
            began = min(watch.running.pop(name, now) for name in plan.tables)
            try:
                outcomes = future.result()
            except MillstreamError as error:
                if error.code is Code.LEADERSHIP_LOST:
                    raise
                _log.warning("a pass over %s failed: %s: %s", ", ".join(plan.tables), error.code, error.message)
                outcomes = dict.fromkeys(plan.tables, Outcome(error=error))
            for name, outcome in outcomes.items():
                self._note(watch, name, outcome, began, now)

    def _note(self, watch: LakeWatch, name: str, outcome: Outcome, began: datetime, now: datetime) -> None:
        if (result := outcome.result) is not None:
            watch.refreshed(name, result.duration_ms / 1000, result.action, began, now)
        elif outcome.error is not None:
            before = watch.backoffs.get(name, NO_BACKOFF)
            failure = after_failure(before, class_of(outcome.error.code), now, self.draw())
            watch.failed(name, failure.backoff, now)
        elif outcome.skipped is not None:
            watch.failed(name, NO_BACKOFF, now)

    def _report(self, view: LakeView, decision: Decision) -> None:
        """Record the deadlines that cannot be kept, and the tables that have become stale, each once."""
        events: list[Event] = []
        missed = {(m.table, m.deadline): m for m in decision.missed}
        for table, deadline in missed.keys() - self._missed:
            late = (missed[table, deadline].expected_at - deadline).total_seconds()
            fields = {"freshness_deadline": deadline, "lateness_secs": round(late, 3)}
            events.append(_event(EventName.SCHEDULE_MISSED, view, table, fields))
        stale = {name: age for name, t in view.tables.items() if (age := _staleness(t, view.now)) is not None}
        for name in stale.keys() - self._stale:
            fields = {"staleness_secs": round(stale[name], 3), "data_timestamp": view.tables[name].data_timestamp}
            events.append(_event(EventName.STALE, view, name, fields))
        self._missed, self._stale = set(missed), set(stale)
        self.catalog.record_events(events)


def _staleness(table: TableView, now: datetime) -> float | None:
    """How old the contents of a stale table are, in seconds; None if it is not stale."""
    if table.schedule is None or table.schedule.seconds is None or table.data_timestamp is None:
        return None
    age = (now - table.data_timestamp).total_seconds()
    return age if age > _STALE_SCHEDULES * table.schedule.seconds else None


def _event(event: EventName, view: LakeView, name: str, fields: Mapping[str, object]) -> Event:
    schedule = view.tables[name].schedule
    text = None if schedule is None else schedule.text
    return Event.of(event, view.now, TableName.parse(name), database=None, schedule=text, **fields)
