"""The loop of the daemon, the only one: it asks the policy what to start, starts it, and notes what becomes of it."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millstream.alerts.dispatch import Dispatcher
from millstream.catalog import Catalog
from millstream.catalog.pulse import Pulse
from millstream.engine.jvm_process import lost_jvm, watching_jvm
from millstream.errors import MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.passes.pass_request import Outcome, PassRequest, Taken
from millstream.passes.quick_look import Looked
from millstream.reasons import Reason
from millstream.results import Action, InitiatedBy
from millstream.scheduler.backoff import NO_BACKOFF, after_failure
from millstream.scheduler.failures import class_of
from millstream.scheduler.lake_view import LakeView, TableView
from millstream.scheduler.policy import Decision, after_look, decide
from millstream.scheduler.serving_retries import SERVED, after_serving_failure
from millstream.scheduler.waits import WaitReason
from millstream.service.daemon.lake_watch import LakeWatch
from millstream.service.daemon.running_pass import RunningPass, outcomes_of
from millstream.service.daemon.source_watch import SourceWatch
from millstream.service.refreshing import Refreshing
from millstream.service.reloading import Reloaded
from millstream.settings import Settings

_log = logging.getLogger(__name__)

_MAINTENANCE_EVERY = timedelta(minutes=5)
_MAINTENANCE_SECONDS = 10.0
"""How long one turn of maintenance begins new work."""
_WAKE_EVERY = timedelta(seconds=10)
"""How long the loop may go without a sign of life in the catalog while nothing is due."""
_EVENTS_KEPT = timedelta(days=30)
_MAX_THREADS = 64
_UNTIL_RESUMED = (WaitReason.ERROR, WaitReason.SUSPENDED)
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
        look: finds out which of some tables need no refresh (`passes.quick_look`).
        sources: watches what the tables read while none is due.
        maintain: keeps the storage small, for about so many seconds.
        alerts: takes all events of the lake, whichever process has recorded them.
        on_activity: called after each decision.
        reload: set when the settings are to be read again, by `reload_settings`.
        draw: a random number from 0 to 1, for the times of retries.
    """

    catalog: Catalog
    refreshing: Refreshing
    look: Callable[[Sequence[str], Mapping[str, datetime | None], Pulse], Looked]
    sources: SourceWatch
    maintain: Callable[[float], object]
    settings: Callable[[], Settings]
    clock: Callable[[], datetime]
    alerts: Dispatcher
    on_activity: Callable[[Activity], None]
    reload: threading.Event
    reload_settings: Callable[[], Reloaded]
    draw: Callable[[], float] = random.random
    _woken: threading.Event = field(default_factory=threading.Event)
    _missed: set[tuple[str, datetime]] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)
    _waiting: dict[str, str] = field(default_factory=dict)

    def run(self, epoch: int, stop: threading.Event) -> None:
        """Refresh what is due until `stop` is set; then wait for the passes that are running.

        Raises:
            MillstreamError: LEADERSHIP_LOST, JVM_LOST, OUT_OF_MEMORY; LAKE_UNWRITABLE if the catalog cannot be written.
        """
        self.catalog.resolve_running(self.clock())
        last_event = self.catalog.pulse().newest_event_id
        watch = LakeWatch(self.catalog, self.settings().concurrent_refreshes)
        running: dict[Future[dict[str, Outcome]], RunningPass] = {}
        upkeep = woke_at = self.clock()
        # the policy limits the passes; those that wait for a database that does not answer take no slot
        with (
            watching_jvm(self._woken.set),
            ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="millstream-pass") as threads,
        ):
            while not stop.is_set():
                self._woken.clear()
                if (lost := lost_jvm()) is not None:
                    raise lost
                self._reload()
                watch.slots = self.settings().concurrent_refreshes
                self._finish(watch, running)
                now, pulse = self.clock(), watch.pulse()
                pulse.leadership.check(epoch)
                is_paused = pulse.leadership.is_paused
                is_enabled = self.settings().enabled and not is_paused
                busy = sum(each.slots(watch.slots) for each in running.values())
                view = watch.view(now, pulse, busy_slots=busy, is_enabled=is_enabled)
                decision, looked = self._looked(watch, view, decide(view), pulse)
                for plan in decision.passes:
                    watch.running |= dict.fromkeys(plan.tables, now)
                    each = RunningPass(plan)
                    future = threads.submit(self._pass, watch, each, looked.taken if looked is not None else None)
                    running[future] = each
                    future.add_done_callback(lambda _: self._woken.set())
                next_look = self.sources.begin_due(now)
                if looked is not None and looked.has_written:
                    woke_at = now
                elif decision.passes or not woke_at <= now < woke_at + _WAKE_EVERY:
                    self.catalog.wake(epoch, now)
                    woke_at = now
                if max(pulse.newest_event_id, self._report(view, decision)) > last_event:
                    events = self.catalog.events(after_id=last_event)
                    self.alerts.put(events)
                    last_event = max([last_event, *(event.event_id or 0 for event in events)])  # none, if just pruned
                self.on_activity(Activity(now, epoch, is_paused, decision, dict(watch.running)))
                if not running and not decision.passes:
                    upkeep = self._maintained(threads, upkeep, now)
                self._woken.wait(self._seconds_until(min(decision.wake_at, next_look)))
        self._finish(watch, running)

    def _looked(
        self, watch: LakeWatch, view: LakeView, decision: Decision, pulse: Pulse
    ) -> tuple[Decision, Looked | None]:
        """Look at all tables that are due, and decide what is still to do; None if nothing is due."""
        deadlines = decision.looked_at
        if not deadlines:
            return decision, None
        looked = self.look([name for name in view.dag.nodes if name in deadlines], deadlines, pulse)
        now = self.clock()
        for name in looked.unchanged:
            seconds = (now - looked.taken.at).total_seconds() / len(looked.unchanged)
            watch.refreshed(name, seconds, Action.NO_DATA, looked.taken.at, now)
        return after_look(decision, view, looked.unchanged, looked.taken.at), looked

    def _reload(self) -> None:
        """Read the settings again, if that was asked for; an invalid file changes nothing."""
        if not self.reload.is_set():
            return
        self.reload.clear()
        try:
            result = self.reload_settings()
        except MillstreamError as error:
            _log.error("the settings stay as they are: %s: %s", error.code, error.message)
            return
        _log.info("read the settings again; changed: %s", ", ".join(result.changed) or "none")
        if result.needs_restart:
            _log.warning("these settings take effect with a restart: %s", ", ".join(result.needs_restart))

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

    def _pass(self, watch: LakeWatch, running: RunningPass, taken: Taken | None) -> dict[str, Outcome]:
        plan = running.plan
        deadlines = {TableName.parse(n): at for n, at in plan.deadlines.items() if at is not None}

        def counts(name: str, error: MillstreamError) -> bool:
            before = watch.backoffs.get(name, NO_BACKOFF)
            return after_failure(before, class_of(error.code), self.clock(), 0.5).counts

        def is_unservable(name: str, error: MillstreamError) -> bool:
            before = watch.unserved.get(name, SERVED)
            after = after_serving_failure(before, class_of(error.code), self.clock(), 0.5)
            return before.errors < after.errors >= self.settings().max_consecutive_errors

        request = PassRequest(
            [TableName.parse(name) for name in plan.tables],
            InitiatedBy.SCHEDULER,
            deadlines=deadlines,
            taken=taken,
            is_waiting=False,
            counts=counts,
            serves=lambda name: watch.unserved.get(name, SERVED).may_retry(self.clock()),
            is_unservable=is_unservable,
            on_frontier=running.is_captured.set,
        )
        return self.refreshing.run_pass(request)

    def _finish(self, watch: LakeWatch, running: dict[Future[dict[str, Outcome]], RunningPass]) -> None:
        """Note what has become of the passes that have ended."""
        for future in [f for f in running if f.done()]:
            plan, now = running.pop(future).plan, self.clock()
            began = min(watch.running.pop(name, now) for name in plan.tables)
            outcomes = outcomes_of(future, plan.tables)
            for name, outcome in outcomes.items():
                self._note(watch, name, outcome, began, now)

    def _note(self, watch: LakeWatch, name: str, outcome: Outcome, began: datetime, now: datetime) -> None:
        if (result := outcome.result) is not None:
            watch.refreshed(name, result.duration_ms / 1000, result.action, began, now)
            if (unserved := outcome.unserved) is not None:
                before = watch.unserved.get(name, SERVED)
                watch.not_served(name, after_serving_failure(before, class_of(unserved.code), now, self.draw()))
            elif not outcome.is_serving_deferred:
                watch.unserved.pop(name, None)
        elif outcome.error is not None:
            failures = watch.backoffs.get(name, NO_BACKOFF)
            failure = after_failure(failures, class_of(outcome.error.code), now, self.draw())
            watch.failed(name, failure.backoff, now)
        elif outcome.skipped is not None:
            watch.failed(name, NO_BACKOFF, now)

    def _report(self, view: LakeView, decision: Decision) -> int:
        """Record deadlines that cannot be kept and tables that have become stale, each once; returns the newest id."""
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
        recorded = self.catalog.record_events(events)
        self._report_waiting({n: w.table for n, w in decision.waiting.items() if w.reason in _UNTIL_RESUMED})
        return max((event.event_id or 0 for event in recorded), default=0)

    def _report_waiting(self, waiting: dict[str, str]) -> None:
        """Record in the history which tables wait for a suspended or failed one, once each time that begins."""
        for name, other in waiting.items():
            table = self.catalog.find(TableName.parse(name)) if self._waiting.get(name) != other else None
            if table is not None:
                self.catalog.record_skip(table.id, InitiatedBy.SCHEDULER, f"{Reason.WAITS}: for {other}")
        self._waiting = waiting


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
