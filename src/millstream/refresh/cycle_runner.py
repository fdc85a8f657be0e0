"""Refreshes a cycle of stream tables: to its least fixpoint, all members or none.

As for a single table (`refresh.runner`), intents come first and the catalog comes last, here for all members: their
intents are recorded in one transaction, and so are their new frontiers. In between, the rounds find what the members
will hold (`cycle_rounds`), without committing anything. Then each member is refreshed as usual, reading these rows in
place of the other members, in a commit of its own. If a process dies between two of these commits, the next refresh
finds the intents, computes the same rows again from the same frontiers, and makes the commits that are missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from millstream.catalog import Catalog
from millstream.catalog.models import Intent, Load, NoData, RefreshOutcome, StreamTable
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.worker import Worker
from millstream.errors import NEVER_COUNTED, MillstreamError
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.planner import Choice
from millstream.planner.cycle_choice import Start
from millstream.refresh.computation import Computation, Done
from millstream.refresh.cycle_plan import CyclePlan, first_plan, planned_cycle, resumed_cycle
from millstream.refresh.cycle_rounds import Rounds
from millstream.refresh.execute import Cost, Progress
from millstream.refresh.plan import RECOMPUTING, Plan, Request, caught_up, stored_version
from millstream.refresh.runner import (
    STOPPED,
    OutdatedError,
    adopted_outcome,
    as_error,
    commit_permit,
    is_about_data,
    logged,
    outcome_of,
    result_of,
    since,
    start_of,
)
from millstream.refresh.staged_input import Staged, staged_input
from millstream.results import Action, RefreshResult
from millstream.settings import Settings

_log = logging.getLogger(__name__)


class CycleRunner:
    """Runs refreshes of cycles on the calling thread's worker; the caller holds the locks of all members."""

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

    def refresh(self, requests: Sequence[Request]) -> dict[str, RefreshResult]:
        """Bring all members to the requested frontier; returns the result of each, by name.

        Raises:
            MillstreamError: the refresh failed; that is recorded for each member, and the old contents stay readable.
            OutdatedError: the definition of a member no longer fits its sources.
        """
        started, started_at = time.perf_counter(), self._clock()
        try:
            requests = [replace(r, table=caught_up(r.table, self._worker.store)) for r in self._recovered(requests)]
            for request in requests:
                self._check(request)
            plan = planned_cycle(requests, self._worker)
        except MillstreamError as error:
            for request in requests:
                self._record_failure(request, error, started_at)
            raise
        if plan.choice.action is Action.NO_DATA:
            return self._no_data(plan, started, started_at)
        floors = [self._worker.store.transaction_version(s.path, s.id) or 0 for r in requests for s in r.table.stages]
        starts = [start_of(p, max(floors, default=0)) for p in plan.plans.values()]
        intents = {intent.table_id: intent for intent in self._catalog.begin_refreshes(starts)}
        return self._attempt(plan, intents, started)

    def load(self, request: Request, peers: Sequence[Request], choice: Choice) -> tuple[Load, RefreshResult]:
        """Fill the stages of a member's definition that has not taken effect; the other members stay as they are.

        Its frontier names none of the others: it follows from rows that they have after the next refresh of the cycle.

        Raises:
            MillstreamError: REFRESH_FAILED, LAKE_UNWRITABLE, RECURSION_LIMIT, ...
        """
        started, table = time.perf_counter(), request.table
        for each in (request, *peers):
            self._definitions.watch(each.table, each.compiled, each.paths, each.base_versions)
        plan = first_plan([request, *peers], choice, self._worker)
        mine, cost = plan.plans[str(table.name)], Cost()
        intent = self._catalog.begin_load(start_of(mine, floor=0))
        try:
            with self._worker.counting_jobs() as count:
                staged, rounds = self._staged(plan, cost)
                mine = _explained(self._over(mine, plan, staged), plan, rounds)
                done = self._computation.compute(mine, intent, cost)
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            raise as_error(cause, table, self._settings) from cause
        outcome = outcome_of(self._worker, mine, done, cost, count.jobs, started)
        if not peers:  # it reads only itself, and that is what was loaded
            intent = _reaching(intent, mine, {str(table.name): outcome.stage_versions[table.public_stage.id]})
        load = Load(intent=intent, initiated_by=request.initiated_by, reason=done.choice.reason, outcome=outcome)
        return load, logged(table, result_of(mine, done, outcome))

    def _check(self, request: Request) -> None:
        self._worker.use(request.table.definition.settings)
        seen = (request.paths, request.base_versions)
        if reason := self._definitions.outdated(request.table, request.compiled, *seen):
            raise OutdatedError(request.table, reason)
        self._definitions.watch(request.table, request.compiled, *seen)

    # Nothing to do

    def _no_data(self, plan: CyclePlan, started: float, started_at: datetime) -> dict[str, RefreshResult]:
        reason = plan.choice.reason
        self._catalog.record_no_data_of_cycle(
            [
                NoData(
                    table_id=p.request.table.id,
                    initiated_by=p.request.initiated_by,
                    data_timestamp=p.request.data_timestamp,
                    frontier={**p.request.table.frontier, **p.frontier},
                    base_frontier=p.request.base_frontier,
                    started_at=started_at,
                    reason=reason,
                    freshness_deadline=p.request.deadline,
                )
                for p in plan.plans.values()
            ]
        )
        return {
            name: logged(
                p.request.table,
                RefreshResult(Action.NO_DATA, 0, 0, 0, since(started), reason, dict(p.request.base_frontier)),
            )
            for name, p in plan.plans.items()
        }

    # Something to do

    def _attempt(self, plan: CyclePlan, intents: Mapping[str, Intent], started: float) -> dict[str, RefreshResult]:
        tables = [p.request.table for p in plan.plans.values()]
        done: dict[str, Done] = {}
        plans: dict[str, Plan] = {}
        costs: dict[str, Cost] = {}
        try:
            with self._worker.counting_jobs() as count:
                cost = Cost()
                staged, rounds = self._staged(plan, cost)
                for name, member in plan.plans.items():
                    table, costs[name] = member.request.table, replace(cost, milliseconds=dict(cost.milliseconds))
                    self._worker.use(table.definition.settings)
                    plans[name] = _explained(self._over(member, plan, staged), plan, rounds)
                    done[name] = self._computation.compute(plans[name], intents[table.id], costs[name])
        except (MillstreamError, *SPARK_ERRORS, OSError) as cause:
            error = as_error(cause, tables[0], self._settings)
            if error.code in STOPPED and self._everything_committed(tables, intents):
                return self._stopped_too_late(plan, intents, started)
            # without intents, the next refresh finds stored rows that the catalog does not know, and starts over
            keep = not is_about_data(error) and self._anything_committed(tables, intents)
            for member in plan.plans.values():
                self._catalog.fail_refresh(
                    intents[member.request.table.id],
                    error,
                    max_consecutive_errors=self._allowed_errors(member.request, error),
                    keep_intent=keep,
                    duration_ms=since(started),
                )
            names = ", ".join(plan.plans)
            _log.info("%s: failed after %.0f ms: %s: %s", names, since(started), error.code, error.message)
            raise error from cause
        outcomes = {
            name: outcome_of(self._worker, plans[name], done[name], costs[name], count.jobs, started) for name in done
        }
        reached = {n: o.stage_versions[plan.plans[n].request.table.public_stage.id] for n, o in outcomes.items()}
        self._catalog.complete_refreshes(
            [(_reaching(intents[p.request.table.id], p, reached), outcomes[n]) for n, p in plan.plans.items()]
        )
        return {name: logged(p.request.table, result_of(p, done[name], outcomes[name])) for name, p in plans.items()}

    def _stopped_too_late(
        self, plan: CyclePlan, intents: Mapping[str, Intent], started: float
    ) -> dict[str, RefreshResult]:
        """A refresh that was stopped after the last commit of the last member is complete: it could not be undone."""
        outcomes = self._adopt([p.request for p in plan.plans.values()], intents)
        return {
            name: logged(
                p.request.table,
                RefreshResult(
                    intents[p.request.table.id].action,
                    outcomes[name].rows_inserted,
                    outcomes[name].rows_updated,
                    outcomes[name].rows_deleted,
                    since(started),
                    outcomes[name].reason or p.choice.reason,
                    dict(p.request.base_frontier),
                ),
            )
            for name, p in plan.plans.items()
        }

    def _staged(self, plan: CyclePlan, cost: Cost) -> tuple[dict[str, Staged], int]:
        """What the members will hold, and in how many rounds that was found."""
        self._progress(f"computing the cycle of {', '.join(plan.plans)}")
        store = self._worker.store
        semantics = {name: p.request.table.definition.settings for name, p in plan.plans.items()}
        rounds = Rounds(self._worker, plan.members, semantics, plan.inputs(store), self._settings, cost)
        if plan.start is Start.STORED:
            return rounds.from_stored(plan.stored(store))
        is_compared = plan.choice.action not in RECOMPUTING
        return rounds.from_empty(plan.stored(store) if is_compared else {})

    def _over(self, member: Plan, plan: CyclePlan, staged: Mapping[str, Staged]) -> Plan:
        """The plan of a member that reads the staged rows of the members."""
        compiled = member.request.compiled
        inputs = dict(member.inputs)
        for name in compiled.sources:
            if name in staged:
                table = plan.plans[name].request.table
                inputs[name] = staged_input(table, compiled.used_columns[name], staged[name])
        return replace(member, inputs=inputs)

    # Recovery

    def _recovered(self, requests: Sequence[Request]) -> list[Request]:
        """Complete, resume or abandon an interrupted refresh; returns the requests for the tables as they are then."""
        opened = [r.table for r in requests if r.table.open_refresh_id is not None]
        intents = {t.id: i for t in opened if (i := self._catalog.open_intent(t.id)) is not None}
        if not intents:
            return list(requests)
        requests = [replace(r, table=caught_up(r.table, self._worker.store)) for r in requests]
        tables = [r.table for r in requests]
        is_whole = len(intents) == len(requests)
        if is_whole and self._everything_committed(tables, intents):
            self._adopt(requests, intents)
        elif is_whole and self._anything_committed(tables, intents):
            try:
                self._attempt(resumed_cycle(requests, intents, self._worker), intents, time.perf_counter())
            except MillstreamError:
                if any(self._catalog.open_intent(t.id) is not None for t in tables):
                    raise
                # it failed on the data at that frontier; the current data may be valid
        else:
            for intent in intents.values():
                self._catalog.abandon_intent(intent, "the process ended before all members were committed")
        return [replace(r, table=self._found(r.table)) for r in requests]

    def _adopt(self, requests: Sequence[Request], intents: Mapping[str, Intent]) -> dict[str, RefreshOutcome]:
        """Record the commits that an interrupted refresh has made for every member; returns what is recorded."""
        self._progress(f"adopting the interrupted refresh of {', '.join(str(r.table.name) for r in requests)}")
        plan = resumed_cycle(requests, intents, self._worker)
        versions: dict[str, dict[str, int]] = {}
        for name, member in plan.plans.items():
            table, found = member.request.table, dict[str, int]()
            for stage in table.stages:
                made = self._computation.committed_version(stage, intents[table.id])
                found[stage.id] = made if made is not None else stored_version(stage)
            versions[name] = found
        reached = {n: versions[n][p.request.table.public_stage.id] for n, p in plan.plans.items()}
        outcomes = {
            n: adopted_outcome(self._worker, p.request.table, intents[p.request.table.id], versions[n])
            for n, p in plan.plans.items()
        }
        self._catalog.complete_refreshes(
            [(_reaching(intents[p.request.table.id], p, reached), outcomes[n]) for n, p in plan.plans.items()]
        )
        return outcomes

    def _everything_committed(self, tables: Sequence[StreamTable], intents: Mapping[str, Intent]) -> bool:
        return all(self._computation.committed_version(t.public_stage, intents[t.id]) is not None for t in tables)

    def _anything_committed(self, tables: Sequence[StreamTable], intents: Mapping[str, Intent]) -> bool:
        return any(self._computation.committed_version(s, intents[t.id]) is not None for t in tables for s in t.stages)

    def _found(self, table: StreamTable) -> StreamTable:
        found = self._catalog.find_by_id(table.id)
        assert found is not None, "the caller holds its lock"
        return found

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


def _explained(member: Plan, plan: CyclePlan, rounds: int) -> Plan:
    """The plan of a member whose reason names the cycle and its rounds."""
    said = f"{member.choice.reason}; {rounds} {'round' if rounds == 1 else 'rounds'} of {', '.join(plan.plans)}"
    return replace(member, choice=replace(member.choice, reason=said))


def _reaching(intent: Intent, member: Plan, reached: Mapping[str, int]) -> Intent:
    """An intent whose frontier names the versions of the members that it reads, which are known only now."""
    read = {name: version for name, version in reached.items() if name in member.request.compiled.sources}
    return replace(intent, new_frontier={**intent.new_frontier, **read})
