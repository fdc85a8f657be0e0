"""Computes the stages of a stream table, and commits each with the refresh id.

A stage that an interrupted attempt has already committed is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from millstream.cancellation import check
from millstream.catalog.models import Intent, Stage, StreamTable
from millstream.engine.spark_errors import SPARK_ERRORS, environment_error, first_line
from millstream.engine.storage import Txn
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.naming import CLOCK
from millstream.planner import Choice
from millstream.reasons import Reason
from millstream.refresh.execute import Cost, Progress, StageRun, is_too_large
from millstream.refresh.fixpoint import has_no_end
from millstream.refresh.full_text import as_stored, run_text
from millstream.refresh.inputs import BoundInput
from millstream.refresh.plan import RECOMPUTING, Plan, stored_version
from millstream.results import Action, RefreshMode
from millstream.settings import Settings
from millstream.sinks.delta import Counts
from millstream.sources.delta import DeltaInput

# changes of more rows are computed and merged inside Spark
MAX_DRIVER_ROWS = 2_000_000
BY_TEXT = "by_text"
"""The key in a commit's metadata that says why it holds only the query's result."""


@dataclass(frozen=True)
class Done:
    """What a refresh has committed, the action it took, and why the next refresh must reinitialise, or None."""

    versions: Mapping[str, int]
    counts: Counts
    choice: Choice
    reinit_reason: str | None = None


class Computation:
    """Carries out the chosen action on one worker.

    Args:
        permit: called right before each commit; raises if this process may not make it any more.
    """

    def __init__(
        self, worker: Worker, settings: Settings, progress: Progress, permit: Callable[[], None] = lambda: None
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._progress = progress
        self._permit = permit

    def compute(self, plan: Plan, intent: Intent, cost: Cost) -> Done:
        """Carry out the chosen action, or fall back to another if it fails on the data.

        Spark guarantees no order of evaluation: a delta, or our plan of the whole query, may divide by zero on a row
        that the query as written filters out first. So the query as written decides whether the data is at fault.
        """
        table, choice = plan.request.table, plan.choice
        is_strict = (plan.request.mode or table.refresh_mode) is RefreshMode.DIFFERENTIAL_STRICT
        if choice.action not in RECOMPUTING:
            self._progress(f"computing the change of {table.name}")
            try:
                return Done(*self._differentiate(plan, intent, cost), choice)
            except SPARK_ERRORS as error:
                _raise_if_no_fault_of_the_query(error)
                reason = f"{Reason.DELTA_FAILED}: {first_line(error)}"
                if is_strict and has_no_end(error):
                    raise
                if is_strict:
                    raise _delta_failed(table, reason) from error
                choice = Choice(Action.FULL, reason)
        self._progress(f"recomputing {table.name}")
        try:
            return Done(*self._recompute(plan, intent, cost), choice)
        except SPARK_ERRORS as error:
            _raise_if_no_fault_of_the_query(error)
            if is_strict or not plan.request.compiled.is_incremental:
                raise
            reason = f"{Reason.PLAN_FAILED}: {first_line(error)}"
            choice = replace(choice, reason=f"{choice.reason}; {reason}")
            return Done(*self._recompute_as_written(plan, intent, cost, reason), choice, reason)

    def _differentiate(
        self, plan: Plan, intent: Intent, cost: Cost, is_large: bool | None = None
    ) -> tuple[dict[str, int], Counts]:
        """Refresh all stages by their deltas."""
        table, compiled = plan.request.table, plan.request.compiled
        feed = sum(b.summary.feed_rows for b in plan.inputs.values() if b.summary is not None)
        large = feed > MAX_DRIVER_ROWS if is_large is None else is_large
        cost.rows_read += feed
        inputs = dict(plan.inputs)
        changed = {name for name, bound in inputs.items() if bound.old is not None and bound.old != bound.new}
        changed.add(CLOCK)
        versions: dict[str, int] = {}
        counts = Counts()
        for named, stage in zip(compiled.stages, table.stages, strict=True):
            before = stored_version(stage)
            counts = Counts()
            after = self.committed_version(stage, intent)
            is_seen = after is not None  # the row counts of a commit from before a crash are unknown
            moved = frozenset(changed) & frozenset(named.inputs)
            if after is None and moved:
                check()
                run = StageRun(
                    self._worker,
                    named,
                    stage.path,
                    before,
                    inputs,
                    moved,
                    self._txn(stage, intent),
                    plan.metadata,
                    cost,
                    feed_rows=feed,
                    is_large=large,
                    settings=self._settings,
                    times=plan.times,
                )
                append = plan.choice.action is Action.APPEND_ONLY and stage.is_public
                try:
                    commit, counts = run.append_only() if append else run.differential()
                except SPARK_ERRORS as error:
                    if large or not is_too_large(error):
                        raise
                    return self._differentiate(plan, intent, cost, is_large=True)
                after = commit.version if commit is not None else None
                is_seen = counts != Counts()
            versions[stage.id] = before if after is None else after
            if is_seen and not stage.is_public:
                changed.add(named.name)
            made = _stage_input(named.name, stage, named.stage.layout.outputs, before, versions[stage.id])
            inputs[named.name] = made.classified(self._worker.store) if named.name in changed else made
        return versions, counts

    def _recompute(self, plan: Plan, intent: Intent, cost: Cost) -> tuple[dict[str, int], Counts]:
        """Load all stages from scratch."""
        table, compiled = plan.request.table, plan.request.compiled
        inputs = dict(plan.inputs)
        before = self._rows(table)
        versions: dict[str, int] = {}
        stages = compiled.stages or (None,)
        for named, stage in zip(stages, table.stages, strict=True):
            after = self.committed_version(stage, intent)
            if after is None:
                check()
                txn, metadata = self._txn(stage, intent), plan.metadata
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
                        times=plan.times,
                    )
                    after = run.load().version
            versions[stage.id] = after
            if named is not None:
                inputs[named.name] = _stage_input(named.name, stage, named.stage.layout.outputs, None, after)
        return versions, Counts(inserted=self._rows(table), deleted=before)

    def _recompute_as_written(
        self, plan: Plan, intent: Intent, cost: Cost, reason: str
    ) -> tuple[dict[str, int], Counts]:
        """Load the public stage from the query's own text; the next refresh has to reinitialise the stages."""
        table, compiled = plan.request.table, plan.request.compiled
        before, stage = self._rows(table), table.public_stage
        with cost.timing("compute"):
            frame = run_text(self._worker, compiled, plan.inputs, plan.request.data_timestamp)
            metadata = {**plan.metadata, BY_TEXT: reason}
            frame = as_stored(frame, compiled.layouts[-1])
            made = self._worker.store.replace(stage.path, frame, self._txn(stage, intent), metadata)
        hidden = {s.id: v for s in table.stages if (v := self.committed_version(s, intent)) is not None}
        return {**hidden, stage.id: made.version}, Counts(inserted=self._rows(table), deleted=before)

    def _rows(self, table: StreamTable) -> int:
        """The current number of visible rows."""
        stage = table.public_stage
        store = self._worker.store
        version = store.version(stage.path)
        if table.definition.body.hides_rows:
            return store.read(stage.path, version, ["__ms_visible"]).where("__ms_visible").count()
        known = store.snapshot(stage.path, version).num_rows
        return known if known is not None else store.read(stage.path, version).count()

    def _txn(self, stage: Stage, intent: Intent) -> Txn:
        return replace(txn_of(stage, intent), permit=self._permit)

    def committed_version(self, stage: Stage, intent: Intent) -> int | None:
        """The version of the stage's commit in this refresh, if it was committed."""
        made = self._worker.store.committed(stage.path, txn_of(stage, intent))
        return made[0] if made is not None else None


def _raise_if_no_fault_of_the_query(error: Exception) -> None:
    """Nothing is computed in another way if the refresh was stopped, the JVM has ended or the disk is full."""
    check()
    if (why := environment_error(error)) is not None:
        raise why from error


def txn_of(stage: Stage, intent: Intent) -> Txn:
    """The transaction id of a stage's commit in a refresh, so that it is committed only once."""
    return Txn(stage.id, intent.refresh_id)


def _stage_input(name: str, stage: Stage, outputs: tuple[str, ...], old: int | None, new: int) -> BoundInput:
    return BoundInput(DeltaInput(name, stage.path), tuple(dict.fromkeys(outputs)), old, new)


def _delta_failed(table: StreamTable, reason: str) -> MillstreamError:
    return MillstreamError(
        Code.FULL_REQUIRED,
        f"the change of {table.name} could not be computed: {reason}",
        hint=f"correct the data; if the query itself does not fail on it, REFRESH STREAM TABLE {table.name} FULL",
    )
