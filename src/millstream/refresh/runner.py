"""Refreshes one stream table: recover, classify the inputs, choose, compute, commit, record.

The order of these steps ensures that a refresh happens exactly once: the intent (refresh id, old and new frontier) is
recorded first; each stage's commit carries the refresh id; the catalog is updated last, in one transaction. If a
process dies in between, the intent remains, and the next refresh checks the stages' commits: if the last one exists it
adopts them, if only some do it computes the rest from the same frontiers, if none does it starts over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from millstream.cancellation import check, explained
from millstream.catalog import Catalog
from millstream.catalog.models import (
    Intent,
    Load,
    NoData,
    RefreshOutcome,
    RefreshStart,
    StreamTable,
)
from millstream.catalog.refresh_details import RefreshDetails
from millstream.engine.spark_errors import SPARK_ERRORS, environment_error, first_line
from millstream.engine.storage import Txn
from millstream.engine.worker import Worker
from millstream.errors import NEVER_COUNTED, Code, MillstreamError
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.planner import Choice
from millstream.reasons import Reason
from millstream.refresh.computation import BY_TEXT, Computation, Done, txn_of
from millstream.refresh.execute import Cost, Progress
from millstream.refresh.fixpoint import endless, has_no_end
from millstream.refresh.plan import Plan, Request, caught_up, first, planned, resumed, stored_version
from millstream.results import Action, RefreshResult
from millstream.settings import Settings

_log = logging.getLogger(__name__)

STOPPED = {Code.REFRESH_CANCELLED, Code.REFRESH_TIMEOUT, Code.JVM_LOST}
"""The refresh was ended from outside, at any point."""


class OutdatedError(Exception):
    """A source of a stream table has changed since its definition was compiled.

    Args:
        table: the stream table, which needs a new definition before it can be refreshed.
        reason: what has changed.
    """

    def __init__(self, table: StreamTable, reason: str) -> None:
        super().__init__(f"{table.name}: {reason}")
        self.table = table
        self.reason = reason


class Runner:
    """Runs refreshes on the calling thread's worker; the caller holds the table's lock."""

    def __init__(
        self,
        catalog: Catalog,
        worker: Worker,
        settings: Settings,
        definitions: RecordedDefinitions,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._worker = worker
        self._settings = settings
        self._definitions = definitions
        self._clock = clock
        self._progress = progress
        self._computation = Computation(worker, settings, progress, commit_permit(catalog))

    def refresh(self, request: Request) -> RefreshResult:
        """Bring a table to the requested frontier.

        Raises:
            MillstreamError: the refresh failed; that is recorded, and the old contents stay readable.
            OutdatedError: its definition no longer fits its sources.
        """
        started, started_at = time.perf_counter(), self._clock()
        try:
            self._worker.use(request.table.definition.settings)
            request = replace(request, table=caught_up(self.recover(request), self._worker.store))
            seen = (request.paths, request.base_versions)
            if reason := self._definitions.outdated(request.table, request.compiled, *seen):
                raise OutdatedError(request.table, reason)
            self._definitions.watch(request.table, request.compiled, *seen)
            plan = planned(request, self._catalog, self._worker, self._settings)
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            error = as_error(cause, request.table, self._settings)
            self._record_failure(request, error, started_at)
            raise error from cause
        if plan.choice.action is Action.NO_DATA:
            return self._no_data(plan, started, started_at)
        return self._run(plan, started)

    # A new definition

    def load(self, request: Request, choice: Choice) -> tuple[Load, RefreshResult]:
        """Fill the stages of a definition that has not taken effect; a failure is not recorded.

        Raises:
            MillstreamError: REFRESH_FAILED, LAKE_UNWRITABLE, RECURSION_LIMIT, ...
        """
        started, table = time.perf_counter(), request.table
        self._worker.use(table.definition.settings)
        self._definitions.watch(table, request.compiled, request.paths, request.base_versions)
        plan = first(request, choice, self._worker)
        intent = self._catalog.begin_load(start_of(plan, floor=0))
        cost = Cost()
        try:
            with self._worker.counting_jobs() as count:
                done = self._computation.compute(plan, intent, cost)
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            raise as_error(cause, table, self._settings) from cause
        outcome = outcome_of(self._worker, plan, done, cost, count.jobs, started)
        load = Load(intent=intent, initiated_by=request.initiated_by, reason=done.choice.reason, outcome=outcome)
        return load, logged(table, result_of(plan, done, outcome))

    # Nothing to do

    def _no_data(self, plan: Plan, started: float, started_at: datetime) -> RefreshResult:
        request = plan.request
        self._catalog.record_no_data(
            NoData(
                table_id=request.table.id,
                initiated_by=request.initiated_by,
                data_timestamp=request.data_timestamp,
                frontier=plan.frontier,
                base_frontier=request.base_frontier,
                started_at=started_at,
                reason=plan.choice.reason,
                freshness_deadline=request.deadline,
            )
        )
        reason, reached = plan.choice.reason, dict(request.base_frontier)
        return logged(request.table, RefreshResult(Action.NO_DATA, 0, 0, 0, since(started), reason, reached))

    # Something to do

    def _run(self, plan: Plan, started: float) -> RefreshResult:
        floors = [self._worker.store.transaction_version(s.path, s.id) or 0 for s in plan.request.table.stages]
        return self._attempt(plan, self._catalog.begin_refresh(start_of(plan, max(floors, default=0))), started)

    def _attempt(self, plan: Plan, intent: Intent, started: float) -> RefreshResult:
        cost = Cost()
        try:
            with self._worker.counting_jobs() as count:
                done = self._computation.compute(plan, intent, cost)
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            error = as_error(cause, plan.request.table, self._settings)
            if error.code in STOPPED and self._is_committed(plan.request.table, intent):
                return self._stopped_too_late(plan, intent, started)
            undone = self._undo(plan.request.table, intent) if is_about_data(error) else None
            self._catalog.fail_refresh(
                intent,
                error,
                max_consecutive_errors=self._allowed_errors(plan.request, error),
                keep_intent=undone is None and self._anything_committed(plan.request.table, intent),
                stage_versions=undone,
                duration_ms=since(started),
            )
            name, took = plan.request.table.name, since(started)
            _log.info("%s: failed after %.0f ms: %s: %s", name, took, error.code, error.message)
            raise error from cause
        outcome = outcome_of(self._worker, plan, done, cost, count.jobs, started)
        self._catalog.complete_refresh(intent, outcome)
        return logged(plan.request.table, result_of(plan, done, outcome))

    # Recovery

    def _stopped_too_late(self, plan: Plan, intent: Intent, started: float) -> RefreshResult:
        """A refresh that was stopped after its last commit is complete: it could not be undone."""
        table = plan.request.table
        outcome = self._adopt(table, intent)
        rows = (outcome.rows_inserted, outcome.rows_updated, outcome.rows_deleted)
        reached = dict(plan.request.base_frontier)
        reason = outcome.reason or plan.choice.reason
        return logged(table, RefreshResult(intent.action, *rows, since(started), reason, reached))

    def _undo(self, table: StreamTable, intent: Intent) -> dict[str, int] | None:
        """Restore the hidden stages after a refresh that failed on the data; None if that is not possible.

        The next refresh can then start from the same stages with other data.
        """
        if self._is_committed(table, intent):
            return None
        versions: dict[str, int] = {}
        try:
            for stage in table.stages:
                if stage.version is not None and self._computation.committed_version(stage, intent) is not None:
                    before = self._worker.store.read(stage.path, stage.version)
                    txn = Txn(f"{stage.id}-undo", intent.refresh_id, permit=self._catalog.check_leadership)
                    versions[stage.id] = self._worker.store.replace(stage.path, before, txn, {}).version
        except (MillstreamError, *SPARK_ERRORS, OSError):
            return None
        return versions

    def recover(self, request: Request) -> StreamTable:
        """Complete, resume or abandon an interrupted refresh; returns the table as it is afterwards."""
        table = request.table
        intent = self._catalog.open_intent(table.id) if table.open_refresh_id is not None else None
        if intent is None:
            return table
        table = caught_up(table, self._worker.store)
        request = replace(request, table=table)
        committed = {s.id: self._computation.committed_version(s, intent) for s in table.stages}
        if committed[table.public_stage.id] is not None:
            self._progress(f"adopting the interrupted refresh of {table.name}")
            self._adopt(table, intent)
        elif any(v is not None for v in committed.values()):
            try:
                self._resume(request, intent)
            except MillstreamError:
                if self._catalog.open_intent(table.id) is not None:
                    raise
                # it failed on the data at that frontier and was undone; the current data may be valid
        else:
            self._catalog.abandon_intent(intent, "the process ended before anything was committed")
        found = self._catalog.find_by_id(table.id)
        assert found is not None
        return found

    def _adopt(self, table: StreamTable, intent: Intent) -> RefreshOutcome:
        """Record a refresh that has committed its public stage."""
        versions = {
            s.id: v if (v := self._computation.committed_version(s, intent)) is not None else stored_version(s)
            for s in table.stages
        }
        outcome = adopted_outcome(self._worker, table, intent, versions)
        self._catalog.complete_refresh(intent, outcome)
        return outcome

    def _resume(self, request: Request, intent: Intent) -> None:
        """Compute the missing stages from the frontiers of the interrupted refresh."""
        plan = resumed(request, intent, self._worker)
        self._attempt(plan, intent, time.perf_counter())

    def _is_committed(self, table: StreamTable, intent: Intent) -> bool:
        return self._computation.committed_version(table.public_stage, intent) is not None

    def _anything_committed(self, table: StreamTable, intent: Intent) -> bool:
        return any(self._computation.committed_version(s, intent) is not None for s in table.stages)

    def _record_failure(self, request: Request, error: MillstreamError, started_at: datetime) -> None:
        self._catalog.record_failure(
            request.table.id,
            error,
            initiated_by=request.initiated_by,
            started_at=started_at,
            max_consecutive_errors=self._allowed_errors(request, error),
        )

    def _allowed_errors(self, request: Request, error: MillstreamError) -> int | None:
        is_counted = error.code not in NEVER_COUNTED and request.counts(error)
        return self._settings.max_consecutive_errors if is_counted else None


def commit_permit(catalog: Catalog) -> Callable[[], None]:
    """Raises, right before a commit, if the refresh was stopped or this process no longer leads the lake."""

    def permit() -> None:
        check()
        catalog.check_leadership()

    return permit


def outcome_of(worker: Worker, plan: Plan, done: Done, cost: Cost, jobs: int | None, started: float) -> RefreshOutcome:
    """What to record about a refresh that has committed."""
    counts, choice = done.counts, _with_strategies(done.choice, cost)
    return RefreshOutcome(
        stage_versions=done.versions,
        rows_inserted=counts.inserted,
        rows_updated=counts.updated,
        rows_deleted=counts.deleted,
        action=choice.action,
        reason=choice.reason,
        reinit_reason=done.reinit_reason,
        duration_ms=since(started),
        details=RefreshDetails(
            changed_rows=plan.changed_rows,
            source_rows=plan.source_rows(worker),
            rows_read=cost.rows_read,
            jobs=jobs,
            milliseconds={k: round(v, 1) for k, v in cost.milliseconds.items()},
        ),
    )


def adopted_outcome(worker: Worker, table: StreamTable, intent: Intent, versions: Mapping[str, int]) -> RefreshOutcome:
    """What to record about an interrupted refresh whose commits were all made."""
    made = worker.store.committed(table.public_stage.path, txn_of(table.public_stage, intent))
    rows = made[1].get("rows") if made is not None else None
    inserted, updated, deleted = rows if isinstance(rows, list) else (0, 0, 0)
    return RefreshOutcome(
        stage_versions=versions,
        rows_inserted=inserted,
        rows_updated=updated,
        rows_deleted=deleted,
        reason=f"{Reason.RECOVERED}: the commit was made, but the catalog was not updated",
        reinit_reason=_text(made[1].get(BY_TEXT)) if made is not None else None,
    )


def _with_strategies(choice: Choice, cost: Cost) -> Choice:
    """The choice, with the strategies of recursions added to its reason."""
    if choice.action is not Action.DIFFERENTIAL or not cost.strategies:
        return choice
    return replace(choice, reason=f"{choice.reason}; recursion by {', '.join(dict.fromkeys(cost.strategies))}")


def start_of(plan: Plan, floor: int) -> RefreshStart:
    """What to record before a refresh commits anything."""
    request = plan.request
    return RefreshStart(
        table_id=request.table.id,
        action=plan.choice.action,
        initiated_by=request.initiated_by,
        data_timestamp=request.data_timestamp,
        old_frontier=request.table.frontier,
        new_frontier=plan.frontier,
        base_frontier=request.base_frontier,
        reason=plan.choice.reason,
        floor=floor,
        freshness_deadline=request.deadline,
    )


def result_of(plan: Plan, done: Done, outcome: RefreshOutcome) -> RefreshResult:
    """What the caller of a refresh gets."""
    assert outcome.action is not None
    assert outcome.reason is not None
    assert outcome.duration_ms is not None
    return RefreshResult(
        outcome.action,
        done.counts.inserted,
        done.counts.updated,
        done.counts.deleted,
        outcome.duration_ms,
        outcome.reason,
        dict(plan.request.base_frontier),
    )


def logged(table: StreamTable, result: RefreshResult) -> RefreshResult:
    """Log a result, and return it."""
    _log.info(
        "%s: %s in %.0f ms, %d rows inserted, %d updated, %d deleted (%s)",
        table.name,
        result.action,
        result.duration_ms,
        result.rows_inserted,
        result.rows_updated,
        result.rows_deleted,
        result.reason,
    )
    return result


def since(started: float) -> float:
    """The milliseconds since a reading of the performance counter."""
    return (time.perf_counter() - started) * 1000


def _text(value: object) -> str | None:
    return str(value) if value is not None else None


def is_about_data(error: MillstreamError) -> bool:
    """Whether the computation failed on the data, and not e.g. because another process ended this refresh."""
    return error.code in {Code.FULL_REQUIRED, Code.RECURSION_LIMIT, Code.REFRESH_FAILED}


def as_error(cause: Exception, table: StreamTable, settings: Settings) -> MillstreamError:
    """The coded error: why the refresh was stopped, if it was, or what went wrong."""
    return explained(_coded(cause, table, settings))


def _coded(cause: Exception, table: StreamTable, settings: Settings) -> MillstreamError:
    if isinstance(cause, MillstreamError):
        return cause
    if (environment := environment_error(cause)) is not None:
        return environment
    if has_no_end(cause):
        return endless(settings.max_recursion, settings.max_recursion_rows)
    kept = "the old contents are still readable" if table.is_populated else "nothing was loaded"
    if isinstance(cause, OSError):
        return MillstreamError(
            Code.LAKE_UNWRITABLE,
            f"the refresh of {table.name} could not write: {cause.strerror or cause}",
            hint=f"free disk space or correct the permissions, then refresh again; {kept}",
        )
    return MillstreamError(
        Code.REFRESH_FAILED,
        f"the refresh of {table.name} failed: {first_line(cause)}",
        hint=f"{kept}; correct the data or the query and try again",
    )
