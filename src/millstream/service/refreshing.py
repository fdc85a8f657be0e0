"""Refreshes that users and the scheduler request: passes, with definitions that follow their sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from millstream.catalog import Catalog
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.passes.pass_request import Outcome, PassRequest, keep
from millstream.refresh.runner import OutdatedError
from millstream.results import InitiatedBy, RefreshMode, RefreshOutcome, RefreshResult, Status
from millstream.service.refresh_events import record_refreshes
from millstream.service.replacing import TRIES, dag_of, kept_changing
from millstream.service.runtime import Runtime


class Refreshing:
    """Refreshes stream tables, each after what it reads.

    Args:
        runtime: returns the part of the lake that needs Spark, and starts it if necessary.
        progress: called with a few words when a longer piece of work begins.
    """

    def __init__(
        self,
        catalog: Catalog,
        runtime: Callable[[], Runtime],
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._runtime = runtime
        self._clock = clock
        self._progress = progress

    def refresh(
        self,
        name: TableName,
        initiated_by: InitiatedBy,
        mode: RefreshMode | None = None,
        held: HeldSnapshot | None = None,
    ) -> RefreshResult:
        """Bring a stream table, and first what it reads, up to date.

        Args:
            mode: for the named table only.
            held: takes over the snapshot that the chain is brought to.

        Raises:
            MillstreamError: SUSPENDED, FULL_REQUIRED, SOURCE_MISSING, SOURCE_CHANGED, REFRESH_FAILED, ...
        """
        self._catalog.get(name)
        modes = {name: mode} if mode is not None else {}
        return result_of(name, self.refresh_all([name], PassRequest((), initiated_by, modes, held=held)))

    def refresh_named(self, names: Sequence[str] | None, mode: RefreshMode | None) -> list[RefreshOutcome]:
        """Refresh some tables in one pass, or all that are not suspended; those that read a suspended one wait for it.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE; SUSPENDED if one of them, or one that they read, is suspended.
        """
        waiting: dict[str, RefreshOutcome] = {}
        if names is None:
            dag, chosen = dag_of(self._catalog), list[TableName]()
            suspended = {str(t.name) for t in self._catalog.list() if t.status is Status.SUSPENDED}
            for name in dag.refresh_order(dag.stream_tables):
                if blocking := suspended.intersection(dag.upstream([name])):
                    waiting[name] = RefreshOutcome(name, waits_for=min(blocking))
                elif name not in suspended:
                    chosen.append(TableName.parse(name))
        else:
            chosen = [self._catalog.get(TableName.parse(name)).name for name in names]
        request = PassRequest((), InitiatedBy.MANUAL, dict.fromkeys(chosen, mode) if mode is not None else {})
        outcomes = self.refresh_all(chosen, request) if chosen else {}
        wanted = {str(name) for name in chosen}
        refreshed = [
            RefreshOutcome(name, outcome.result, outcome.error or outcome.unserved, outcome.waits_for)
            for name, outcome in outcomes.items()
            if name in wanted
        ]
        return [*refreshed, *waiting.values()]

    def refresh_all(self, names: Sequence[TableName], request: PassRequest) -> dict[str, Outcome]:
        """Bring stream tables, and first what they read, up to date in one pass; returns how each has fared.

        Raises:
            MillstreamError: SUSPENDED; UNKNOWN_TABLE.
        """
        runtime, wanted = self._runtime(), [str(name) for name in names]

        def order() -> list[TableName]:
            runtime.lake.sync()
            try:
                return [TableName.parse(n) for n in dag_of(self._catalog).refresh_order(wanted)]
            except MillstreamError:
                for name in names:
                    self._catalog.get(name)  # reports that another process has dropped it meanwhile
                raise

        return self._run(runtime, request, order)

    def run_pass(self, request: PassRequest) -> dict[str, Outcome]:
        """Run a pass over exactly the requested tables; those that were dropped meanwhile are left out."""
        runtime = self._runtime()

        def order() -> list[TableName]:
            runtime.lake.sync()
            return [name for name in request.order if self._catalog.find(name) is not None]

        return self._run(runtime, request, order)

    def _run(
        self, runtime: Runtime, request: PassRequest, order: Callable[[], Sequence[TableName]]
    ) -> dict[str, Outcome]:
        """Run a pass, again after definitions had to follow their sources."""
        outcomes: dict[str, Outcome] = {}
        failed: dict[str, Outcome] = {}
        reloaded: dict[str, Outcome] = {}
        followed: Counter[str] = Counter()
        while True:
            found = runtime.passes.run(replace(request, order=order()))
            request = replace(request, taken=None)  # a further pass takes its own frontier
            for name, outcome in {**found, **failed}.items():
                keep(outcomes, name, outcome)
            # a later pass brings a table that was loaded again to the frontier of the others
            outcomes |= {name: o for name, o in reloaded.items() if outcomes[name].result is not None}
            outdated = [o.outdated for n, o in found.items() if o.outdated is not None and n not in failed]
            following: dict[str, Outcome] = {}
            for each in outdated:
                followed[each.table.id] += 1
                following[str(each.table.name)] = self._follow(runtime, request, each, followed[each.table.id])
            for name, outcome in following.items():
                keep(outcomes, name, outcome)
            failed |= {name: outcome for name, outcome in following.items() if outcome.error is not None}
            reloaded |= {name: outcome for name, outcome in following.items() if outcome.result is not None}
            is_done = all(outcome.result is not None for outcome in following.values()) and request.held is None
            if failed.keys() >= following.keys() or (is_done and not any(o.waits_for for o in found.values())):
                record_refreshes(self._catalog, outcomes, request.initiated_by, self._clock())
                return outcomes

    def _follow(self, runtime: Runtime, request: PassRequest, outdated: OutdatedError, tries: int) -> Outcome:
        """Give a table a definition that fits its sources."""
        table = outdated.table
        self._progress(f"compiling {table.name} again: {outdated.reason}")
        try:
            if tries > TRIES:
                raise kept_changing(table.name)
            loaded = runtime.replacements.follow(outdated, request.initiated_by, request.modes.get(table.name))
        except MillstreamError as error:
            return Outcome(error=error)
        return Outcome(result=loaded) if loaded is not None else Outcome(outdated=outdated)


def result_of(name: TableName, outcomes: Mapping[str, Outcome]) -> RefreshResult:
    """The result of a table's refresh.

    Raises:
        MillstreamError: why it, or what it waits for, was not refreshed; why it was not served.
    """
    outcome = outcomes[str(name)]
    while outcome.waits_for is not None and outcome.waits_for in outcomes:
        outcome = outcomes[outcome.waits_for]
    if (error := outcome.error or outcome.unserved) is not None:
        raise error
    if outcome.result is None:
        raise MillstreamError(
            Code.NOT_POPULATED,
            f"{name} cannot be refreshed before {outcome.waits_for}",
            hint=f"REFRESH STREAM TABLE {outcome.waits_for}",
        )
    return outcome.result
