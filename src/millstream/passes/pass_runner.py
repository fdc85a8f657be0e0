"""A pass: captures, refreshes and serves a set of stream tables at one frontier, each after what it reads.

The frontier is taken once, so all corners of a diamond agree. Stream tables that do not read each other are refreshed
side by side. Only the table that is being written is locked: what it reads is read at the version that this pass has
brought it to, and while it is read, it cannot be given another definition. If another process has brought a table
further than the frontier of the pass, the pass takes a new frontier. The members of a cycle are refreshed together, as
one unit, under the locks of all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial

from millstream.catalog import Catalog
from millstream.catalog.models import Load, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.locks import LockManager, Waiting
from millstream.naming import TableName
from millstream.passes.attempt import Attempt, prepare, reads_of, refuse_suspended
from millstream.passes.frontier import Frontiers
from millstream.passes.pass_request import Outcome, PassRequest, keep
from millstream.passes.running_refreshes import RunningRefreshes
from millstream.passes.table_refresh import TableRefresh
from millstream.planner import Choice
from millstream.reasons import Reason
from millstream.refresh.execute import Progress
from millstream.refresh.runner import OutdatedError
from millstream.results import InitiatedBy, RefreshMode, RefreshResult

_log = logging.getLogger(__name__)

_TRIES = 5
"""How many frontiers a pass takes before it locks all its tables, so that no other process can overtake it."""


class _OvertakenError(Exception):
    """Another process has refreshed a table of the pass beyond its frontier, or given it another definition."""


class PassRunner:
    """Runs passes.

    Args:
        concurrency: how many tables may be refreshed side by side.
    """

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        frontiers: Frontiers,
        refresher: TableRefresh,
        clock: Callable[[], datetime],
        progress: Progress,
        concurrency: int,
        running: RunningRefreshes,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._frontiers = frontiers
        self._refresher = refresher
        self._clock = clock
        self._progress = progress
        self._running = running
        self._threads = _threads(concurrency)

    def resize(self, concurrency: int) -> None:
        """Refresh another number of tables side by side from now on; what is running is finished."""
        before, self._threads = self._threads, _threads(concurrency)
        before.shutdown(wait=False)

    def close(self) -> None:
        """End the threads that refresh tables side by side, and the one that stops refreshes."""
        self._threads.shutdown()
        self._running.close()

    def run(self, request: PassRequest) -> dict[str, Outcome]:
        """Refresh the tables of a pass; returns how each has fared, by name.

        Raises:
            MillstreamError: SUSPENDED, unless the scheduler asks; NOT_A_STREAM_TABLE.
        """
        outcomes: dict[str, Outcome] = {}
        for _ in range(_TRIES):
            try:
                self._attempt(request, outcomes)
            except _OvertakenError as overtaken:
                _log.debug("takes a new frontier: %s", overtaken)
                request = replace(request, taken=None)
            else:
                return outcomes
        ids = [self._catalog.get(name).id for name in request.order]
        with self._locks.acquire(ids, on_wait=self.waiting):
            self._attempt(request, outcomes, is_locked=True)
        return outcomes

    def load(
        self,
        upstream: Sequence[TableName],
        candidate: StreamTable,
        compiled: Compiled,
        initiated_by: InitiatedBy,
        choice: Choice,
        mode: RefreshMode | None = None,
    ) -> tuple[StreamTable, Load, RefreshResult]:
        """Fill the stages of a new definition that has not taken effect, after refreshing what it reads.

        The caller holds the locks of all of them. Nothing is recorded of the candidate, even if this fails.

        Args:
            upstream: the stream tables it reads, directly or not.
            candidate: the stream table as it will be, except for its contents.

        Returns:
            The candidate with its contents, and what to record about them.

        Raises:
            MillstreamError: SUSPENDED, or why what it reads cannot be refreshed, or the candidate loaded.
            OutdatedError: the definition of a table it reads no longer fits what that reads.
        """
        modes = {candidate.name: mode} if mode is not None else {}
        request = PassRequest(upstream, initiated_by, modes)
        refuse_suspended([self._catalog.get(name) for name in upstream])
        attempt = prepare(request, self._catalog, self._frontiers, is_locked=True, candidate=candidate)
        for error in attempt.frontier.failures.values():
            raise error
        for name in attempt.units():
            if str(candidate.name) in attempt.unit(name):
                continue
            for outcome in self._refresh(attempt, name).values():
                if (problem := outcome.outdated or outcome.error) is not None:
                    raise problem
        goal = attempt.goal(candidate)
        with self._running.refreshing([candidate.name], self._workers.here()):
            if str(candidate.name) in attempt.cycles:
                peers = [attempt.tables[n] for n in attempt.unit(str(candidate.name)) if n != str(candidate.name)]
                goals = [(peer, attempt.goal(peer)) for peer in peers]
                load, result = self._refresher.load_member(candidate, compiled, goal, choice, goals)
            else:
                load, result = self._refresher.load(candidate, compiled, goal, choice)
        versions = load.outcome.stage_versions
        loaded = replace(
            candidate,
            stages=tuple(replace(s, version=versions.get(s.id)) for s in candidate.stages),
            is_populated=True,
            data_timestamp=goal.data_timestamp,
            frontier=load.intent.new_frontier,
            base_frontier=goal.frontier,
        )
        return loaded, load, result

    def waiting(self, waiting: Waiting) -> None:
        """Report what a caller is waiting for."""
        who = f" (process {waiting.holder_pid})" if waiting.holder_pid else ""
        _log.debug("waiting for %s%s for %.1f s", waiting.key, who, waiting.waited_seconds)
        self._progress(f"waiting for another refresh to end{who}")

    def _attempt(self, request: PassRequest, outcomes: dict[str, Outcome], *, is_locked: bool = False) -> None:
        if request.initiated_by is not InitiatedBy.SCHEDULER:
            refuse_suspended([self._catalog.get(name) for name in request.order])
        attempt = prepare(request, self._catalog, self._frontiers, is_locked=is_locked)
        request.on_frontier()
        started_at = attempt.frontier.data_timestamp
        for name, error in attempt.frontier.failures.items():
            table, counts = attempt.tables[name], partial(request.counts, name)
            self._refresher.record_failure(table, error, request.initiated_by, started_at, counts)
            self._stop(attempt, outcomes, name, Outcome(error=error))
        for name, others in attempt.agreement.held_back.items():
            self._stop(attempt, outcomes, name, Outcome(waits_for=min(others)))
        self._refresh_all(attempt, outcomes)
        if request.held is not None and not attempt.stopped:
            request.held.refreshed([attempt.reached[str(n)] for n in request.order], attempt.frontier.captured)

    def _stop(self, attempt: Attempt, outcomes: dict[str, Outcome], name: str, outcome: Outcome) -> None:
        keep(outcomes, name, outcome)
        attempt.stopped.add(name)

    def _refresh_all(self, attempt: Attempt, outcomes: dict[str, Outcome]) -> None:
        """Refresh each table as soon as what it reads is done; side by side, if several can be."""
        for name in attempt.units():
            if stopped := attempt.stopped.intersection(attempt.unit(name)):
                self._stop_unit(attempt, outcomes, name, min(stopped))
        waiting = [name for name in attempt.units() if name not in attempt.stopped]
        running: dict[Future[dict[str, Outcome]], str] = {}
        overtaken: _OvertakenError | None = None
        while waiting or running:
            ready = [] if overtaken else self._ready(attempt, waiting, running.values(), outcomes)
            waiting = [name for name in waiting if name not in ready and name not in attempt.stopped]
            if not ready and not running:
                break
            if len(ready) == 1 and not running:
                finished = [(ready[0], partial(self._refresh, attempt, ready[0]))]
            else:
                running |= {
                    self._threads.submit(copy_context().run, self._refresh, attempt, name): name for name in ready
                }
                done = wait(running, return_when=FIRST_COMPLETED).done
                finished = [(running.pop(future), partial(Future.result, future)) for future in done]
            for _, outcomes_of in finished:
                try:
                    found = outcomes_of()
                except _OvertakenError as error:
                    overtaken = error
                    continue
                for name, outcome in found.items():
                    keep(outcomes, name, outcome)
                    if outcome.result is None:
                        attempt.stopped.add(name)
        if overtaken is not None:
            raise overtaken

    def _ready(
        self, attempt: Attempt, waiting: Sequence[str], running: Collection[str], outcomes: dict[str, Outcome]
    ) -> list[str]:
        """The units that can be refreshed now; those that cannot be refreshed in this pass any more are stopped."""
        ready: list[str] = []
        pending = {*running, *waiting}
        for name in waiting:
            upstream = attempt.reads[name].upstream
            if stopped := upstream & attempt.stopped:
                self._stop_unit(attempt, outcomes, name, min(stopped))
                pending.discard(name)
            elif not attempt.first_of(upstream) & pending:
                ready.append(name)
        return ready

    def _stop_unit(self, attempt: Attempt, outcomes: dict[str, Outcome], name: str, blocking: str) -> None:
        for member in attempt.unit(name):
            if member not in attempt.stopped:
                self._stop(attempt, outcomes, member, Outcome(waits_for=blocking))

    def _refresh(self, attempt: Attempt, name: str) -> dict[str, Outcome]:
        """Refresh one unit of the pass, under the locks of its tables."""
        names, request = attempt.unit(name), attempt.request
        tables = [attempt.tables[member] for member in names]
        try:
            with self._holding(attempt, tables):
                current = [self._current(attempt, table) for table in tables]
                goals = {str(table.name): attempt.goal(table) for table in current}
                with self._running.refreshing([table.name for table in current], self._workers.here()):
                    if name in attempt.cycles:
                        members = [(table, goals[str(table.name)]) for table in current]
                        refreshed = self._refresher.refresh_cycle(members)
                    else:
                        refreshed = {name: self._refresher.refresh(current[0], goals[name])}
                for table in current:
                    attempt.reached[str(table.name)] = self._catalog.find_by_id(table.id) or table
        except OutdatedError as outdated:
            changed = str(outdated.table.name)
            waiting = {member: Outcome(waits_for=changed) for member in names if member != changed}
            return {changed: Outcome(outdated=outdated), **waiting}
        except MillstreamError as error:
            if error.code is Code.LOCK_TIMEOUT and not request.is_waiting:
                reason = f"{Reason.BUSY}: {error.message}"
                for table in tables:
                    self._catalog.record_skip(table.id, request.initiated_by, reason)
                return {member: Outcome(skipped=reason) for member in names}
            return {member: Outcome(error=error) for member in names}
        return {
            member: Outcome(result=result, unserved=error, is_serving_deferred=not goals[member].is_served)
            for member, (result, error) in refreshed.items()
        }

    def _current(self, attempt: Attempt, table: StreamTable) -> StreamTable:
        """A table as it is now that its lock is held."""
        current = self._catalog.find_by_id(table.id)
        if current is None:
            raise MillstreamError(Code.NOT_A_STREAM_TABLE, f"{table.name} was dropped")
        if not attempt.is_locked:
            self._refuse_overtaken(attempt, current)
        return current

    def _holding(self, attempt: Attempt, tables: Sequence[StreamTable]) -> AbstractContextManager[None]:
        if attempt.is_locked:
            return nullcontext()
        return self._locks.acquire(
            [table.id for table in tables],
            timeout=None if attempt.request.is_waiting else 0,
            on_wait=self.waiting,
            shared=[definition_key(attempt.known(n).id) for n in attempt.reads[str(tables[0].name)].upstream],
        )

    def _refuse_overtaken(self, attempt: Attempt, current: StreamTable) -> None:
        """Raise if the table, or a definition that it reads, is not what the pass was prepared for."""
        frontier, store = attempt.frontier, self._workers.here().store
        for base, version in attempt.agreement.versions[str(current.name)].items():
            seen = current.base_frontier.get(base, 0)
            # a source that was replaced may have started over
            if seen > version and base in frontier.paths and store.version(frontier.paths[base]) >= seen:
                raise _OvertakenError(f"{current.name} is at version {seen} of {base}")
        if current.data_timestamp is not None and frontier.data_timestamp < current.data_timestamp <= self._clock():
            raise _OvertakenError(f"{current.name} is at {current.data_timestamp}")
        if reads_of(current) != reads_of(attempt.tables[str(current.name)]):
            raise _OvertakenError(f"{current.name} has another definition")
        for name in attempt.reads[str(current.name)].upstream:
            upstream = attempt.known(name)
            now = self._catalog.find_by_id(upstream.id)
            if now is None or now.definition.body.stamp != upstream.definition.body.stamp:
                raise _OvertakenError(f"{name} has another definition")


def _threads(concurrency: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(concurrency, thread_name_prefix="millstream-refresh")


def definition_key(table_id: str) -> str:
    """The lock under which a stream table gets another definition; the refreshes of its readers share it."""
    return f"definition-{table_id}"
