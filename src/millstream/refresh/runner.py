"""Refreshes one stream table: recover, look at the inputs, choose, compute, commit, record.

The order of events is what makes a refresh happen exactly once: the intent (refresh id, old and new frontier) is
recorded first; each stage's commit carries the refresh id; the catalog moves last, in one transaction. A process that
dies in between leaves an intent, and the next refresh looks at the stages' commits: if the last one is there it adopts
them, if only some are it computes the rest from the same frontiers, if none is it starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from millstream.catalog import Catalog
from millstream.catalog.models import (
    Intent,
    LakeObject,
    NoData,
    RefreshOutcome,
    RefreshStart,
    SourceKind,
    Stage,
    StreamTable,
)
from millstream.diff.bag import BagStage
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.engine.storage import RangeKind, RangeSummary, Txn
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.naming import CLOCK
from millstream.planner import Choice, Facts, InputFacts, Measured, choose
from millstream.refresh.execute import Cost, Progress, StageRun, Times, is_too_large
from millstream.refresh.fixpoint import endless, has_no_end
from millstream.refresh.full_text import as_stored, run_text
from millstream.refresh.inputs import BoundInput, bind_inputs
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshResult, RefreshStatus
from millstream.settings import Settings
from millstream.sinks.delta import Counts
from millstream.sources.delta import DeltaInput

# a change feed of more rows is computed and merged inside Spark
MAX_DRIVER_ROWS = 2_000_000
_RECOMPUTING = {Action.FULL, Action.REINITIALIZE}
_INCREMENTAL = {Action.DIFFERENTIAL, Action.APPEND_ONLY}
_BY_TEXT = "by_text"  # in the metadata of a commit: why it holds the query's result only


@dataclass(frozen=True)
class Request:
    """What to refresh a table to, and on whose behalf."""

    table: StreamTable
    compiled: Compiled
    base_versions: Mapping[str, int]
    paths: Mapping[str, str]
    base_frontier: Mapping[str, int]
    data_timestamp: datetime
    initiated_by: InitiatedBy
    mode: RefreshMode | None = None


class OtherSourcesError(Exception):
    """A view was replaced by one that reads other tables: the refresh has to begin anew, with a frontier of those."""


class Definitions(Protocol):
    """What a refresh asks about a table's query."""

    def compiled(self, table: StreamTable) -> Compiled:
        """The compiled query."""

    def outdated(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> str | None:
        """What among the things a table reads is no longer what its query was compiled for."""

    def rebind(self, table: StreamTable, reason: str) -> tuple[StreamTable, Compiled]:
        """The query compiled anew over what it reads now."""

    def restore(self, table: StreamTable) -> None:
        """Undo `rebind`."""

    def settle(self, table: StreamTable) -> None:
        """Let go of what an earlier definition has stored."""

    def watch(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> None:
        """Have the sources record their changes."""

    def land(self, item: LakeObject) -> None:
        """Copy a table that records no changes into the lake."""


class Runner:
    """Runs refreshes on the calling thread's worker; the caller holds the table's lock."""

    def __init__(
        self,
        catalog: Catalog,
        worker: Worker,
        settings: Settings,
        definitions: Definitions,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._worker = worker
        self._settings = settings
        self._definitions = definitions
        self._clock = clock
        self._progress = progress

    def refresh(self, request: Request) -> RefreshResult:
        """Bring a table to the requested frontier.

        Raises:
            MillstreamError: the refresh failed; that is recorded, and the old contents stay readable.
            OtherSourcesError: the table now reads other tables than the request is for.
        """
        started, started_at = time.perf_counter(), self._clock()
        try:
            self._worker.use(request.table.definition.settings)
            request = replace(request, table=self.recover(request))
            before, seen = request.table, (request.paths, request.base_versions)
            if reason := self._definitions.outdated(before, request.compiled, *seen):
                table, compiled = self._definitions.rebind(before, reason)
                if _read_by(table) != _read_by(before) or _lie_elsewhere(table, request.paths):
                    raise OtherSourcesError(str(table.name))
                request = replace(request, table=table, compiled=compiled)
            self._definitions.watch(request.table, request.compiled, *seen)
            plan = self._plan(request)
        except MillstreamError as error:
            self._record_failure(request, error, started_at)
            raise
        if plan.choice.action is Action.NO_DATA:
            result = self._no_data(plan, started, started_at)
        else:
            try:
                result = self._run(plan, started)
            except BaseException:
                if request.table is not before:
                    self._definitions.restore(before)
                raise
        if "previous" in request.table.definition.body:
            self._definitions.settle(request.table)
        return result

    # Planning

    def _plan(self, request: Request) -> _Plan:
        table, compiled = request.table, request.compiled
        inputs = bind_inputs(self._catalog, table, compiled, request.base_versions, request.paths)
        found = {name: bound.facts(self._worker.store) for name, bound in inputs.items()}
        mode = request.mode or table.refresh_mode
        facts = Facts(
            mode=mode,
            is_explicit=request.mode is not None,
            is_populated=table.is_populated,
            is_incremental=compiled.is_incremental,
            not_incremental="; ".join(compiled.reasons),
            inputs=[facts for facts, _ in found.values()],
            is_monotone=_is_monotone(compiled),
            follows_time=compiled.follows_time,
            reinit_reason=_reinit_reason(table),
            max_change_ratio=self._settings.differential_max_change_ratio,
            history=self._measured(table) if mode is RefreshMode.AUTO else (),
        )
        summaries = {name: summary for name, (_, summary) in found.items() if summary is not None}
        choice = choose(facts)
        if choice.action in _INCREMENTAL and (reason := self._moved_on(table)):
            choice = choose(replace(facts, reinit_reason=reason))
        return _Plan(request, inputs, facts.inputs, summaries, choice)

    def _moved_on(self, table: StreamTable) -> str | None:
        """Why a delta cannot be applied: a stored table is not what the catalog says, e.g. since that was restored."""
        for stage in table.stages:
            known, now = _stored_version(stage), self._worker.store.version(stage.path)
            if known != now and self._worker.store.classify(stage.path, known, now).kind is not RangeKind.NOTHING:
                return f"STORED_CHANGED: the stored table is at version {now}, the catalog knows {known}"
        return None

    def _measured(self, table: StreamTable) -> list[Measured]:
        measured: list[Measured] = []
        for past in self._catalog.history(table.name, 30):
            source_rows = past.details.get("source_rows")
            if past.status is RefreshStatus.COMPLETED and past.duration_ms and isinstance(source_rows, int):
                measured.append(
                    Measured(
                        past.action in _RECOMPUTING,
                        int(past.details.get("changed_rows", 0)),
                        source_rows,
                        past.duration_ms,
                    )
                )
        return measured

    # Nothing to do

    def _no_data(self, plan: _Plan, started: float, started_at: datetime) -> RefreshResult:
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
            )
        )
        return RefreshResult(Action.NO_DATA, 0, 0, 0, _since(started), plan.choice.reason, dict(request.base_frontier))

    # Something to do

    def _run(self, plan: _Plan, started: float) -> RefreshResult:
        request, table = plan.request, plan.request.table
        floors = [self._worker.store.transaction_version(s.path, s.id) or 0 for s in table.stages]
        intent = self._catalog.begin_refresh(
            RefreshStart(
                table_id=table.id,
                action=plan.choice.action,
                initiated_by=request.initiated_by,
                data_timestamp=request.data_timestamp,
                old_frontier=table.frontier,
                new_frontier=plan.frontier,
                base_frontier=request.base_frontier,
                reason=plan.choice.reason,
                floor=max(floors, default=0),
            )
        )
        return self._attempt(plan, intent, started)

    def _attempt(self, plan: _Plan, intent: Intent, started: float) -> RefreshResult:
        cost, choice = Cost(), plan.choice
        try:
            with self._worker.counting_jobs() as count:
                done = self._compute(plan, intent, cost)
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            error = _as_error(cause, plan.request.table, self._settings)
            undone = self._undo(plan.request.table, intent) if _is_about_data(cause) else None
            self._catalog.fail_refresh(
                intent,
                error,
                max_consecutive_errors=self._settings.max_consecutive_errors,
                keep_intent=undone is None and self._anything_committed(plan.request.table, intent),
                stage_versions=undone,
                duration_ms=_since(started),
            )
            raise error from cause
        counts, choice = done.counts, _with_strategies(done.choice, cost)
        duration = _since(started)
        self._catalog.complete_refresh(
            intent,
            RefreshOutcome(
                stage_versions=done.versions,
                rows_inserted=counts.inserted,
                rows_updated=counts.updated,
                rows_deleted=counts.deleted,
                action=choice.action,
                reason=choice.reason,
                reinit_reason=done.reinit_reason,
                duration_ms=duration,
                details=plan.details(self._worker)
                | {
                    "rows_read": cost.rows_read,
                    "jobs": count.jobs,
                    "ms": {k: round(v, 1) for k, v in cost.milliseconds.items()},
                },
            ),
        )
        return RefreshResult(
            choice.action,
            counts.inserted,
            counts.updated,
            counts.deleted,
            duration,
            choice.reason,
            dict(plan.request.base_frontier),
        )

    def _compute(self, plan: _Plan, intent: Intent, cost: Cost) -> _Done:
        """Do what was chosen, or what can be done instead where that fails on the data.

        Spark promises no order of evaluation: a delta, or our plan of the whole query, may divide by zero on a row that
        the query as the user wrote it filters out first. That query has the last word on whether the data is at fault.
        """
        table, choice = plan.request.table, plan.choice
        is_strict = (plan.request.mode or table.refresh_mode) is RefreshMode.DIFFERENTIAL_STRICT
        if choice.action not in _RECOMPUTING:
            self._progress(f"computing the change of {table.name}")
            try:
                return _Done(*self._differentiate(plan, intent, cost), choice)
            except SPARK_ERRORS as error:
                reason = f"DELTA_FAILED: {first_line(error)}"
                if is_strict and has_no_end(error):
                    raise
                if is_strict:
                    raise _delta_failed(table, reason) from error
                choice = Choice(Action.FULL, reason)
        self._progress(f"recomputing {table.name}")
        try:
            return _Done(*self._recompute(plan, intent, cost), choice)
        except SPARK_ERRORS as error:
            if is_strict or not plan.request.compiled.is_incremental:
                raise
            reason = f"PLAN_FAILED: {first_line(error)}"
            choice = replace(choice, reason=f"{choice.reason}; {reason}")
            return _Done(*self._recompute_as_written(plan, intent, cost, reason), choice, reason)

    def _differentiate(
        self, plan: _Plan, intent: Intent, cost: Cost, is_large: bool | None = None
    ) -> tuple[dict[str, int], Counts]:
        """Refresh all stages by their deltas."""
        table, compiled = plan.request.table, plan.request.compiled
        feed = sum(s.feed_rows for s in plan.summaries.values())
        large = feed > MAX_DRIVER_ROWS if is_large is None else is_large
        cost.rows_read += feed
        inputs = dict(plan.inputs)
        changed = {name for name, bound in inputs.items() if bound.old is not None and bound.old != bound.new}
        changed.add(CLOCK)
        versions: dict[str, int] = {}
        counts = Counts()
        for named, stage in zip(compiled.stages, table.stages, strict=True):
            before = _stored_version(stage)
            counts = Counts()
            after = self._committed_version(stage, intent)
            moved = frozenset(changed) & frozenset(named.inputs)
            if after is None and moved:
                run = StageRun(
                    self._worker,
                    named,
                    stage.path,
                    before,
                    inputs,
                    moved,
                    _txn(stage, intent),
                    _metadata(plan),
                    cost,
                    feed_rows=feed,
                    is_large=large,
                    settings=self._settings,
                    times=_times(plan),
                )
                append = plan.choice.action is Action.APPEND_ONLY and stage.is_public
                try:
                    commit, counts = run.append_only() if append else run.differential()
                except SPARK_ERRORS as error:
                    if large or not is_too_large(error):
                        raise
                    return self._differentiate(plan, intent, cost, is_large=True)
                after = commit.version if commit is not None else None
            versions[stage.id] = before if after is None else after
            if after is not None and not stage.is_public:
                changed.add(named.name)
            inputs[named.name] = _stage_input(named.name, stage, named.stage.layout.outputs, before, versions[stage.id])
        return versions, counts

    def _recompute(self, plan: _Plan, intent: Intent, cost: Cost) -> tuple[dict[str, int], Counts]:
        """Load all stages anew."""
        table, compiled = plan.request.table, plan.request.compiled
        inputs = dict(plan.inputs)
        before = self._rows(table)
        versions: dict[str, int] = {}
        stages = compiled.stages or (None,)
        for named, stage in zip(stages, table.stages, strict=True):
            after = self._committed_version(stage, intent)
            if after is None:
                txn, metadata = _txn(stage, intent), _metadata(plan)
                if named is None:
                    with cost.timing("compute"):
                        frame = run_text(self._worker, compiled, inputs, plan.request.data_timestamp)
                        frame = frame.toDF(*(c.name for c in compiled.layouts[-1].columns))
                        after = self._worker.store.replace(stage.path, frame, txn, metadata).version
                else:
                    run = StageRun(
                        self._worker,
                        named,
                        stage.path,
                        0,
                        inputs,
                        frozenset(),
                        txn,
                        metadata,
                        cost,
                        settings=self._settings,
                        times=_times(plan),
                    )
                    after = run.load().version
            versions[stage.id] = after
            if named is not None:
                inputs[named.name] = _stage_input(named.name, stage, named.stage.layout.outputs, None, after)
        return versions, Counts(inserted=self._rows(table), deleted=before)

    def _recompute_as_written(
        self, plan: _Plan, intent: Intent, cost: Cost, reason: str
    ) -> tuple[dict[str, int], Counts]:
        """Load what the user sees by the query's own text; the stages cannot be maintained from there."""
        table, compiled = plan.request.table, plan.request.compiled
        before, stage = self._rows(table), table.public_stage
        with cost.timing("compute"):
            frame = run_text(self._worker, compiled, plan.inputs, plan.request.data_timestamp)
            metadata = {**_metadata(plan), _BY_TEXT: reason}
            frame = as_stored(frame, compiled.layouts[-1])
            made = self._worker.store.replace(stage.path, frame, _txn(stage, intent), metadata)
        hidden = {s.id: v for s in table.stages if (v := self._committed_version(s, intent)) is not None}
        return {**hidden, stage.id: made.version}, Counts(inserted=self._rows(table), deleted=before)

    def _rows(self, table: StreamTable) -> int:
        """How many rows the user sees now."""
        stage = table.public_stage
        store = self._worker.store
        version = store.version(stage.path)
        if table.definition.body["hides_rows"]:
            return store.read(stage.path, version, ["__ms_visible"]).where("__ms_visible").count()
        known = store.snapshot(stage.path, version).num_rows
        return known if known is not None else store.read(stage.path, version).count()

    # Recovery

    def _undo(self, table: StreamTable, intent: Intent) -> dict[str, int] | None:
        """Take the hidden stages of a refresh that failed on the data back to what they were, so that the next one can
        start from there with other data; None if that is not possible.
        """
        if self._committed_version(table.public_stage, intent) is not None:
            return None
        versions: dict[str, int] = {}
        try:
            for stage in table.stages:
                if stage.version is not None and self._committed_version(stage, intent) is not None:
                    before = self._worker.store.read(stage.path, stage.version)
                    txn = Txn(f"{stage.id}-undo", intent.refresh_id)
                    versions[stage.id] = self._worker.store.replace(stage.path, before, txn, {}).version
        except (MillstreamError, *SPARK_ERRORS, OSError):
            return None
        return versions

    def recover(self, request: Request) -> StreamTable:
        """End a refresh that was cut short; gives the table as it is afterwards."""
        table = request.table
        intent = self._catalog.open_intent(table.id) if table.open_refresh_id is not None else None
        if intent is None:
            return table
        committed = {s.id: self._committed_version(s, intent) for s in table.stages}
        if committed[table.public_stage.id] is not None:
            self._progress(f"adopting the interrupted refresh of {table.name}")
            versions = {s.id: v if (v := committed[s.id]) is not None else _stored_version(s) for s in table.stages}
            made = self._worker.store.committed(table.public_stage.path, _txn(table.public_stage, intent))
            rows = made[1].get("rows") if made is not None else None
            inserted, updated, deleted = rows if isinstance(rows, list) else (0, 0, 0)
            self._catalog.complete_refresh(
                intent,
                RefreshOutcome(
                    stage_versions=versions,
                    rows_inserted=inserted,
                    rows_updated=updated,
                    rows_deleted=deleted,
                    reason="RECOVERED: the commit was made, the catalog was not told",
                    reinit_reason=_text(made[1].get(_BY_TEXT)) if made is not None else None,
                ),
            )
        elif any(v is not None for v in committed.values()):
            try:
                self._resume(request, intent)
            except MillstreamError:
                if self._catalog.open_intent(table.id) is not None:
                    raise
                # it failed on the data of that time, and was undone: the data of now may be in order
        else:
            self._catalog.abandon_intent(intent, "the process ended before anything was committed")
        found = self._catalog.find_by_id(table.id)
        assert found is not None
        return found

    def _resume(self, request: Request, intent: Intent) -> None:
        """Compute the stages that are missing, from the frontiers the interrupted refresh had."""
        table = request.table
        versions = {n: v for n, v in intent.new_frontier.items() if n in request.paths}
        inputs = bind_inputs(
            self._catalog, table, request.compiled, {**request.base_versions, **versions}, request.paths
        )
        inputs = {
            n: replace(b, old=intent.old_frontier.get(n), new=intent.new_frontier.get(n, b.new))
            for n, b in inputs.items()
        }
        found = {n: b.facts(self._worker.store) for n, b in inputs.items()}
        summaries = {n: s for n, (_, s) in found.items() if s is not None}
        facts = [f for f, _ in found.values()]
        resumed = replace(request, base_frontier=intent.base_frontier, data_timestamp=intent.data_timestamp)
        reason = "RESUMED: an interrupted refresh was completed"
        plan = _Plan(resumed, inputs, facts, summaries, Choice(intent.action, reason))
        self._attempt(plan, intent, time.perf_counter())

    def _committed_version(self, stage: Stage, intent: Intent) -> int | None:
        """The version of the stage's commit in this refresh, if it was made."""
        made = self._worker.store.committed(stage.path, _txn(stage, intent))
        return made[0] if made is not None else None

    def _anything_committed(self, table: StreamTable, intent: Intent) -> bool:
        return any(self._committed_version(s, intent) is not None for s in table.stages)

    def _record_failure(self, request: Request, error: MillstreamError, started_at: datetime) -> None:
        self._catalog.record_failure(
            request.table.id,
            error,
            initiated_by=request.initiated_by,
            started_at=started_at,
            max_consecutive_errors=self._settings.max_consecutive_errors,
        )


@dataclass(frozen=True)
class _Done:
    """What a refresh has committed, what it did for that, and why the next one has to start over, if so."""

    versions: Mapping[str, int]
    counts: Counts
    choice: Choice
    reinit_reason: str | None = None


@dataclass(frozen=True)
class _Plan:
    """A request, what was found out about its inputs, and what to do."""

    request: Request
    inputs: Mapping[str, BoundInput]
    facts: Sequence[InputFacts]
    summaries: Mapping[str, RangeSummary]
    choice: Choice

    @property
    def frontier(self) -> dict[str, int]:
        """The version of each input the contents will reflect."""
        return {name: bound.new for name, bound in self.inputs.items()}

    def details(self, worker: Worker) -> dict[str, object]:
        """What the planner knew, for the history."""
        rows = {n: worker.store.snapshot(b.delta.path, b.new).num_rows or 0 for n, b in self.inputs.items()}
        return {"changed_rows": sum(f.changed_rows for f in self.facts), "source_rows": sum(rows.values())}


def _with_strategies(choice: Choice, cost: Cost) -> Choice:
    """The choice with how the changes of recursions were computed, if there were any."""
    if choice.action is not Action.DIFFERENTIAL or not cost.strategies:
        return choice
    return replace(choice, reason=f"{choice.reason}; recursion by {', '.join(dict.fromkeys(cost.strategies))}")


def _is_monotone(compiled: Compiled) -> bool:
    stages = compiled.stages
    return len(stages) == 1 and isinstance(stages[0].stage, BagStage) and stages[0].stage.is_monotone


def _read_by(table: StreamTable) -> set[str]:
    """The tables and stream tables a table reads."""
    kinds = {SourceKind.TABLE, SourceKind.STREAM_TABLE}
    return {d.name for d in table.definition.dependencies if d.kind in kinds}


def _lie_elsewhere(table: StreamTable, paths: Mapping[str, str]) -> bool:
    """Whether tables it reads were loaded anew, in another place, to be read by it."""
    tables = [d for d in table.definition.dependencies if d.kind is SourceKind.TABLE]
    return any(paths.get(d.name) != d.source_id for d in tables)


def _reinit_reason(table: StreamTable) -> str | None:
    return (table.reinit_reason or "REINIT: marked for reinitialisation") if table.needs_reinit else None


def _stage_input(name: str, stage: Stage, outputs: tuple[str, ...], old: int | None, new: int) -> BoundInput:
    return BoundInput(DeltaInput(name, stage.path), tuple(dict.fromkeys(outputs)), old, new)


def _txn(stage: Stage, intent: Intent) -> Txn:
    return Txn(stage.id, intent.refresh_id)


def _metadata(plan: _Plan) -> dict[str, object]:
    return {"frontier": plan.frontier, "action": str(plan.choice.action)}


def _times(plan: _Plan) -> Times:
    now, before = plan.request.data_timestamp, plan.request.table.data_timestamp
    return Times(now, before if before is not None else now)


def _stored_version(stage: Stage) -> int:
    if stage.version is None:
        raise MillstreamError(Code.NOT_POPULATED, "the stream table has no contents to maintain")
    return stage.version


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _text(value: object) -> str | None:
    return str(value) if value is not None else None


def _is_about_data(cause: Exception) -> bool:
    """Whether Spark failed on what it computed; not so, e.g., if another process has ended this refresh."""
    codes = {Code.FULL_REQUIRED, Code.RECURSION_LIMIT}
    return isinstance(cause, SPARK_ERRORS) or (isinstance(cause, MillstreamError) and cause.code in codes)


def _delta_failed(table: StreamTable, reason: str) -> MillstreamError:
    return MillstreamError(
        Code.FULL_REQUIRED,
        f"the change of {table.name} could not be computed: {reason}",
        hint="mend the data; if the query itself does not fail on it, refresh once with FULL",
    )


def _as_error(cause: Exception, table: StreamTable, settings: Settings) -> MillstreamError:
    if isinstance(cause, MillstreamError):
        return cause
    if has_no_end(cause):
        return endless(settings.max_recursion, settings.max_recursion_rows)
    kept = "the old contents are still readable" if table.is_populated else "nothing was loaded"
    if isinstance(cause, OSError):
        return MillstreamError(
            Code.LAKE_UNWRITABLE,
            f"the refresh of {table.name} could not write: {cause.strerror or cause}",
            hint=f"free disk space or mend the permissions, then refresh again; {kept}",
        )
    return MillstreamError(
        Code.REFRESH_FAILED,
        f"the refresh of {table.name} failed: {first_line(cause)}",
        hint=f"{kept}; mend the data or the query and try again",
    )
