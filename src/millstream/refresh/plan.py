"""What a refresh is to do: what was asked for, what its inputs have become, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.catalog import Catalog
from millstream.catalog.models import Intent, Stage, StreamTable
from millstream.diff.bag import BagStage
from millstream.engine.storage import RangeKind, RangeSummary
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.planner import Choice, Facts, InputFacts, Measured, choose
from millstream.refresh.execute import Times
from millstream.refresh.inputs import BoundInput, bind_inputs
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshStatus
from millstream.settings import Settings

RECOMPUTING = {Action.FULL, Action.REINITIALIZE}
_INCREMENTAL = {Action.DIFFERENTIAL, Action.APPEND_ONLY}


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


@dataclass(frozen=True)
class Plan:
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

    @property
    def metadata(self) -> dict[str, object]:
        """What the commits of the refresh say."""
        return {"frontier": self.frontier, "action": str(self.choice.action)}

    @property
    def times(self) -> Times:
        """What the current time is for the contents before and after."""
        now, before = self.request.data_timestamp, self.request.table.data_timestamp
        return Times(now, before if before is not None else now)


def planned(request: Request, catalog: Catalog, worker: Worker, settings: Settings) -> Plan:
    """Look at the inputs, and choose."""
    table, compiled = request.table, request.compiled
    inputs = bind_inputs(catalog, table, compiled, request.base_versions, request.paths)
    found = {name: bound.facts(worker.store) for name, bound in inputs.items()}
    mode = request.mode or table.refresh_mode
    facts = Facts(
        name=str(table.name),
        mode=mode,
        is_explicit=request.mode is not None,
        is_populated=table.is_populated,
        is_incremental=compiled.is_incremental,
        not_incremental="; ".join(compiled.reasons),
        inputs=[facts for facts, _ in found.values()],
        is_monotone=_is_monotone(compiled),
        follows_time=compiled.follows_time,
        reinit_reason=_reinit_reason(table),
        max_change_ratio=settings.differential_max_change_ratio,
        history=_measured(table, catalog) if mode is RefreshMode.AUTO else (),
    )
    summaries = {name: summary for name, (_, summary) in found.items() if summary is not None}
    choice = choose(facts)
    if choice.action in _INCREMENTAL and (reason := _moved_on(table, worker)):
        choice = choose(replace(facts, reinit_reason=reason))
    return Plan(request, inputs, facts.inputs, summaries, choice)


def first(request: Request, choice: Choice, catalog: Catalog, worker: Worker) -> Plan:
    """The load of stages that are empty."""
    inputs = bind_inputs(catalog, request.table, request.compiled, request.base_versions, request.paths)
    return Plan(request, inputs, [bound.facts(worker.store)[0] for bound in inputs.values()], {}, choice)


def _moved_on(table: StreamTable, worker: Worker) -> str | None:
    """Why a delta cannot be applied: a stored table is not what the catalog says, e.g. since that was restored."""
    for stage in table.stages:
        known, now = stored_version(stage), worker.store.version(stage.path)
        if known != now and worker.store.classify(stage.path, known, now).kind is not RangeKind.NOTHING:
            return f"STORED_CHANGED: the stored table is at version {now}, the catalog knows {known}"
    return None


def _measured(table: StreamTable, catalog: Catalog) -> list[Measured]:
    measured: list[Measured] = []
    for past in catalog.history(table.name, 30):
        source_rows = past.details.get("source_rows")
        if past.status is RefreshStatus.COMPLETED and past.duration_ms and isinstance(source_rows, int):
            measured.append(
                Measured(
                    past.action in RECOMPUTING,
                    int(past.details.get("changed_rows", 0)),
                    source_rows,
                    past.duration_ms,
                )
            )
    return measured


def resumed(request: Request, intent: Intent, catalog: Catalog, worker: Worker) -> Plan:
    """What a refresh that was cut short was about to do."""
    table = request.table
    versions = {n: v for n, v in intent.new_frontier.items() if n in request.paths}
    inputs = bind_inputs(catalog, table, request.compiled, {**request.base_versions, **versions}, request.paths)
    inputs = {
        n: replace(b, old=intent.old_frontier.get(n), new=intent.new_frontier.get(n, b.new)) for n, b in inputs.items()
    }
    found = {n: b.facts(worker.store) for n, b in inputs.items()}
    summaries = {n: s for n, (_, s) in found.items() if s is not None}
    facts = [f for f, _ in found.values()]
    again = replace(request, base_frontier=intent.base_frontier, data_timestamp=intent.data_timestamp)
    reason = "RESUMED: an interrupted refresh was completed"
    return Plan(again, inputs, facts, summaries, Choice(intent.action, reason))


def stored_version(stage: Stage) -> int:
    """The version of a stage that the catalog knows.

    Raises:
        MillstreamError: NOT_POPULATED.
    """
    if stage.version is None:
        raise MillstreamError(Code.NOT_POPULATED, "the stream table has no contents to maintain")
    return stage.version


def _is_monotone(compiled: Compiled) -> bool:
    stages = compiled.stages
    return len(stages) == 1 and isinstance(stages[0].stage, BagStage) and stages[0].stage.is_monotone


def _reinit_reason(table: StreamTable) -> str | None:
    return (table.reinit_reason or "REINIT: marked for reinitialisation") if table.needs_reinit else None
