"""Watches the sources of a lake while no stream table is due: attached databases, and the lake's own tables.

Each source has a thread of its own, so that a database that is slow or does not answer delays no other. A look at a
database to which nothing was written is one query; nothing is written there or into the catalog.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millstream.capture import Captures
from millstream.capture.backlog import BacklogLimits, backlog_events
from millstream.capture.captures import Look
from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable
from millstream.engine.storage import DeltaStore
from millstream.errors import Code, MillstreamError
from millstream.lake.source_changes import change_in_lake
from millstream.service.daemon.watch_plan import Looked, plan_looks
from millstream.settings import Settings

_log = logging.getLogger(__name__)

_LAKE = ""
"""Stands for the lake's own tables, views and functions beside the names of databases."""
_DRAIN_SECONDS = 30.0
_BACKLOG_LOOKS = (Look.BUSY, Look.TICKED)
_ENDING = (Code.LEADERSHIP_LOST, Code.LAKE_CLOSED)
"""Errors that concern more than one source."""


@dataclass
class SourceWatch:
    """The looks at the sources of a lake.

    Args:
        store: the Delta tables as the calling thread reads them.
    """

    catalog: Catalog
    captures: Captures
    store: Callable[[], DeltaStore]
    settings: Callable[[], Settings]
    clock: Callable[[], datetime]
    _looked: dict[str, Looked] = field(default_factory=dict)
    _running: dict[str, Future[bool]] = field(default_factory=dict)
    _threads: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    _reported: dict[str, frozenset[str]] = field(default_factory=dict)
    _known: tuple[int, tuple[StreamTable, ...]] | None = None
    _marked: set[tuple[str, str, str]] = field(default_factory=set)

    def begin_due(self, now: datetime) -> datetime:
        """Begin the looks that are due, each in its own thread; returns when the next one is.

        Raises:
            MillstreamError: LEADERSHIP_LOST, if a look has found that.
        """
        self._note_ended(now)
        names = (_LAKE, *(database.name for database in self.catalog.databases()))
        for gone in self._threads.keys() - set(names) - self._running.keys():
            self._threads.pop(gone).shutdown(wait=False)
        every = timedelta(seconds=self.settings().source_watch_seconds)
        plan = plan_looks(names, self._looked, every, now)
        for name in plan.due:
            if name not in self._threads:
                self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=f"millstream-watch-{name or 'lake'}")
            self._looked[name] = self._looked.get(name, Looked()).begun()
            self._running[name] = self._threads[name].submit(self._look, name)
        return plan.wake_at

    def close(self) -> None:
        """Wait a while for the looks that are running; a tick that is interrupted is recovered by the next one."""
        if wait(self._running.values(), _DRAIN_SECONDS).not_done:
            _log.warning("a look at a source is still running")
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)

    def _note_ended(self, now: datetime) -> None:
        for name in [n for n, future in self._running.items() if future.done()]:
            has_failed = not self._running.pop(name).result()
            self._looked[name] = self._looked[name].ended(now, has_failed=has_failed)

    def _look(self, name: str) -> bool:
        """Look at a source; returns whether that succeeded."""
        try:
            if name == _LAKE:
                self._look_at_lake()
            else:
                self._look_at(name)
        except MillstreamError as error:
            if error.code in _ENDING:
                raise
            level = logging.INFO if error.code is Code.NOT_ATTACHED else logging.WARNING
            _log.log(level, "a look at %s failed: %s: %s", name or "the lake", error.code, error.message)
            return False
        return True

    def _look_at(self, name: str) -> None:
        """Tick a database if something was written there, and report what waits in it."""
        started, look = time.perf_counter(), Look.BUSY
        try:
            look = self.captures.watch(name)
            _log.debug("%s: %s in %.1f ms", name, look.name, (time.perf_counter() - started) * 1000)
        except MillstreamError as error:
            if error.code not in (Code.DATABASE_UNREACHABLE, Code.NOT_ATTACHED, *_ENDING):
                self._report_backlog(name)  # what cannot be read keeps growing
            raise
        if look in _BACKLOG_LOOKS:
            self._report_backlog(name)

    def _report_backlog(self, name: str) -> None:
        settings = self.settings()
        limits = BacklogLimits(settings.slot_lag_alert_bytes, settings.buffer_alert_rows)
        reported = self._reported.get(name, frozenset())
        backlog = self.captures.backlog(name, limits)
        events, self._reported[name] = backlog_events(name, backlog, reported, limits, self.clock())
        self.catalog.record_events(events)

    def _look_at_lake(self) -> None:
        """Mark the stream tables whose sources in the lake were replaced or dropped."""
        generation, store = self.catalog.generation(), self.store()
        if self._known is None or self._known[0] != generation:
            self._known, self._marked = (generation, self.catalog.list()), set()
        for table in self._known[1]:
            change, stamp = change_in_lake(self.catalog, store, table), table.definition.body.stamp
            if change is None or (occurrence := (table.id, stamp, change)) in self._marked:
                continue
            self._marked.add(occurrence)
            now = self.catalog.find_by_id(table.id)
            if now is not None and now.definition.body.stamp == stamp and now.is_populated and not now.needs_reinit:
                self.catalog.mark_needs_reinit(table.id, change)
