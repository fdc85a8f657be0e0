"""The plan of a refresh: the request, the state of its inputs, and the chosen action."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.catalog import Catalog
from millstream.catalog.models import Intent, Stage, StreamTable
from millstream.diff.bag import BagStage
from millstream.engine.storage import DeltaStore, RangeKind
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.planner import Choice, Facts, InputFacts, Measured, choose
from millstream.reasons import Reason
from millstream.refresh.execute import Times
from millstream.refresh.inputs import BoundInput, bind_inputs
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshStatus
from millstream.settings import Settings

RECOMPUTING = {Action.FULL, Action.REINITIALIZE}
_INCREMENTAL = {Action.DIFFERENTIAL, Action.APPEND_ONLY}


@dataclass(frozen=True)
class Request:
    """The table to refresh, what to refresh it to, and who initiated it.

    Args:
        base_versions: of the base tables that it reads directly, which lie at `paths`.
        base_frontier: the versions of all base tables that its contents will stand for.
        upstream: the stream tables that it reads, as they are to be read.
        deadline: when its contents would be stale by its schedule.
        counts: whether a failure counts towards the errors in a row after which the table goes to ERROR.
    """

    table: StreamTable
    compiled: Compiled
    base_versions: Mapping[str, int]
    paths: Mapping[str, str]
    base_frontier: Mapping[str, int]
    upstream: Mapping[str, StreamTable]
    data_timestamp: datetime
    initiated_by: InitiatedBy
    mode: RefreshMode | None = None
    deadline: datetime | None = None
    counts: Callable[[MillstreamError], bool] = lambda _: True

    def inputs(self, versions: Mapping[str, int] | None = None, without: Collection[str] = ()) -> dict[str, BoundInput]:
        """Its inputs, except some; of base tables at other versions than asked for, if they are given."""
        found = versions if versions is not None else self.base_versions
        return bind_inputs(self.table, self.compiled, found, self.paths, self.upstream, without=without)


@dataclass(frozen=True)
class Plan:
    """A request, the facts about its inputs, and the choice."""

    request: Request
    inputs: Mapping[str, BoundInput]
    facts: Sequence[InputFacts]
    choice: Choice

    @property
    def frontier(self) -> dict[str, int]:
        """The version of each input that the contents will reflect."""
        return {name: bound.new for name, bound in self.inputs.items()}

    @property
    def changed_rows(self) -> int:
        """The number of changed rows of all inputs, as the planner saw it."""
        return sum(f.changed_rows for f in self.facts)

    def source_rows(self, worker: Worker) -> int:
        """The number of rows of all inputs."""
        return sum(b.num_rows(worker.store) or 0 for b in self.inputs.values())

    @property
    def metadata(self) -> dict[str, object]:
        """The metadata of the refresh's commits."""
        return {"frontier": self.frontier, "action": str(self.choice.action)}

    @property
    def times(self) -> Times:
        """The current time for the contents before and after the refresh."""
        now, before = self.request.data_timestamp, self.request.table.data_timestamp
        return Times(now, before if before is not None else now)


def planned(request: Request, catalog: Catalog, worker: Worker, settings: Settings) -> Plan:
    """Classify the inputs and choose an action."""
    table, compiled = request.table, request.compiled
    bound = request.inputs()
    inputs = {name: b.classified(worker.store) for name, b in bound.items()}
    mode = request.mode or table.refresh_mode
    facts = Facts(
        name=str(table.name),
        mode=mode,
        is_explicit=request.mode is not None,
        is_populated=table.is_populated,
        is_incremental=compiled.is_incremental,
        not_incremental="; ".join(compiled.reasons),
        inputs=[b.facts(worker.store) for b in inputs.values()],
        is_monotone=_is_monotone(compiled),
        follows_time=compiled.follows_time,
        reinit_reason=reinit_reason(table),
        max_change_ratio=settings.differential_max_change_ratio,
        history=_measured(table, catalog) if mode is RefreshMode.AUTO else (),
    )
    choice = choose(facts)
    if choice.action in _INCREMENTAL and (reason := moved_on(table, worker)):
        choice = choose(replace(facts, reinit_reason=reason))
    return Plan(request, inputs, facts.inputs, choice)


def first(request: Request, choice: Choice, worker: Worker) -> Plan:
    """The plan for the first load of empty stages."""
    bound = request.inputs()
    inputs = {name: b.classified(worker.store) for name, b in bound.items()}
    return Plan(request, inputs, [b.facts(worker.store) for b in inputs.values()], choice)


def caught_up(table: StreamTable, store: DeltaStore) -> StreamTable:
    """A table whose stages are recorded at their newest versions, as far as no row has changed since.

    Maintenance rewrites files in a commit of its own; if its process dies before the catalog knows, the refresh after
    it has to find the rows where they are now.
    """
    return replace(table, stages=tuple(_caught_up(stage, store) for stage in table.stages))


def _caught_up(stage: Stage, store: DeltaStore) -> Stage:
    if stage.version is None or (now := store.version(stage.path)) == stage.version:
        return stage
    is_same = store.classify(stage.path, stage.version, now).kind is RangeKind.NOTHING
    return replace(stage, version=now) if is_same else stage


def moved_on(table: StreamTable, worker: Worker) -> str | None:
    """Why no delta can be applied: a stage is not at its recorded version, e.g. because the catalog was restored."""
    for stage in table.stages:
        known, now = stored_version(stage), worker.store.version(stage.path)
        if known != now and worker.store.classify(stage.path, known, now).kind is not RangeKind.NOTHING:
            return f"{Reason.STORED_CHANGED}: the stored table is at version {now}, the catalog knows {known}"
    return None


def _measured(table: StreamTable, catalog: Catalog) -> list[Measured]:
    measured: list[Measured] = []
    for past in catalog.history(table.name, 30):
        known = past.details
        if past.status is RefreshStatus.COMPLETED and past.duration_ms and known is not None:
            is_recomputed = past.action in RECOMPUTING
            measured.append(Measured(is_recomputed, known.changed_rows, known.source_rows, past.duration_ms))
    return measured


def resumed(request: Request, intent: Intent, worker: Worker) -> Plan:
    """The plan of an interrupted refresh."""
    versions = {n: v for n, v in intent.new_frontier.items() if n in request.paths}
    bound = request.inputs({**request.base_versions, **versions})
    old, new = intent.old_frontier, intent.new_frontier
    bound = {n: replace(b, old=old.get(n), new=new.get(n, b.new)) for n, b in bound.items()}
    inputs = {n: b.classified(worker.store) for n, b in bound.items()}
    facts = [b.facts(worker.store) for b in inputs.values()]
    again = replace(request, base_frontier=intent.base_frontier, data_timestamp=intent.data_timestamp)
    reason = f"{Reason.RESUMED}: an interrupted refresh was completed"
    return Plan(again, inputs, facts, Choice(intent.action, reason))


def stored_version(stage: Stage) -> int:
    """The recorded version of a stage.

    Raises:
        MillstreamError: NOT_POPULATED.
    """
    if stage.version is None:
        raise MillstreamError(Code.NOT_POPULATED, "the stream table has no contents to maintain")
    return stage.version


def _is_monotone(compiled: Compiled) -> bool:
    stages = compiled.stages
    return len(stages) == 1 and isinstance(stages[0].stage, BagStage) and stages[0].stage.is_monotone


def reinit_reason(table: StreamTable) -> str | None:
    """Why a table was marked for reinitialisation; None if it was not."""
    return (table.reinit_reason or f"{Reason.REINIT}: marked for reinitialisation") if table.needs_reinit else None
