"""The plan of a cycle's refresh: what its members read outside of the cycle, and how all of them are refreshed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import functions as f

from millstream.catalog.models import Intent, StreamTable
from millstream.diff.circular import Member
from millstream.engine.storage import DeltaStore, RangeKind
from millstream.engine.worker import Worker
from millstream.lake import Compiled
from millstream.naming import WEIGHT, quote
from millstream.planner import Change, Choice, InputFacts
from millstream.planner.cycle_choice import CycleFacts, Start, choose_for_cycle
from millstream.reasons import Reason
from millstream.refresh.cycle_rounds import Stored
from millstream.refresh.inputs import BoundInput, stream_input
from millstream.refresh.plan import Plan, Request, moved_on, reinit_reason
from millstream.results import RefreshMode


@dataclass(frozen=True)
class CyclePlan:
    """The plans of all members, by name.

    Args:
        plans: with the inputs outside of the cycle only.
        start: the rows from which the rounds start.
    """

    plans: Mapping[str, Plan]
    start: Start

    @property
    def choice(self) -> Choice:
        """The choice, which is the same for all members."""
        return next(iter(self.plans.values())).choice

    @property
    def members(self) -> dict[str, Member]:
        """The members' queries."""
        found: dict[str, Member] = {}
        for name, plan in self.plans.items():
            compiled = plan.request.compiled
            assert compiled.relation is not None, "a member of a cycle is maintained by deltas"
            found[name] = Member(name, compiled.relation, compiled.columns)
        return found

    def inputs(self, store: DeltaStore) -> dict[str, BoundInput]:
        """The inputs of all members, each with the columns that any of them reads."""
        return _joint_inputs([plan.inputs for plan in self.plans.values()], store)

    def stored(self, store: DeltaStore) -> dict[str, Stored]:
        """What the members have stored."""
        found: dict[str, Stored] = {}
        for name, plan in self.plans.items():
            table, names = plan.request.table, [c.name for c in plan.request.compiled.columns]
            version = table.public_stage.version
            assert version is not None, "all members have contents"
            rows = stream_input(table).contents(store, version, names)
            found[name] = Stored(rows, store.snapshot(table.public_stage.path, version).num_rows or 0)
        return found


def planned_cycle(requests: Sequence[Request], worker: Worker) -> CyclePlan:
    """Classify what the members read outside of the cycle, and choose.

    Raises:
        MillstreamError: FULL_REQUIRED if a member is DIFFERENTIAL STRICT and no delta is possible.
    """
    store, names = worker.store, {str(r.table.name) for r in requests}
    bound = {str(r.table.name): _classified(r.inputs(without=names), store) for r in requests}
    joint = _joint_inputs(list(bound.values()), store)
    is_populated = all(r.table.is_populated and r.table.public_stage.version is not None for r in requests)
    facts = CycleFacts(
        inputs=[b.facts(store) for b in joint.values()],
        is_populated=is_populated,
        is_requested=any(r.mode is RefreshMode.FULL for r in requests),
        reinit_reason=_reinit_reason(requests, worker) if is_populated else None,
        strict=[
            str(r.table.name) for r in requests if (r.mode or r.table.refresh_mode) is RefreshMode.DIFFERENTIAL_STRICT
        ],
    )
    chosen = choose_for_cycle(facts)
    if chosen.choice.reason.startswith(Reason.FROM_EMPTY):
        seen = [_without_losses(i, joint[i.name], store) for i in facts.inputs]
        chosen = choose_for_cycle(replace(facts, inputs=seen))
    return _plan(requests, bound, chosen.choice, chosen.start, store)


def first_plan(requests: Sequence[Request], choice: Choice, worker: Worker) -> CyclePlan:
    """The plan for loading a member whose definition has not taken effect."""
    names = {str(r.table.name) for r in requests}
    bound = {str(r.table.name): _classified(r.inputs(without=names), worker.store) for r in requests}
    return _plan(requests, bound, choice, Start.EMPTY, worker.store)


def resumed_cycle(requests: Sequence[Request], intents: Mapping[str, Intent], worker: Worker) -> CyclePlan:
    """The plan of an interrupted refresh, at its frontiers."""
    names = {str(r.table.name) for r in requests}
    bound: dict[str, Mapping[str, BoundInput]] = {}
    again: list[Request] = []
    for request in requests:
        intent = intents[request.table.id]
        old, new = intent.old_frontier, intent.new_frontier
        versions = {n: v for n, v in new.items() if n in request.paths}
        inputs = request.inputs({**request.base_versions, **versions}, names)
        inputs = {n: replace(b, old=old.get(n), new=new.get(n, b.new)) for n, b in inputs.items()}
        bound[str(request.table.name)] = _classified(inputs, worker.store)
        again.append(replace(request, base_frontier=intent.base_frontier, data_timestamp=intent.data_timestamp))
    action = intents[requests[0].table.id].action
    choice = Choice(action, f"{Reason.RESUMED}: an interrupted refresh was completed")
    return _plan(again, bound, choice, Start.EMPTY, worker.store)


def _plan(
    requests: Sequence[Request],
    bound: Mapping[str, Mapping[str, BoundInput]],
    choice: Choice,
    start: Start,
    store: DeltaStore,
) -> CyclePlan:
    plans: dict[str, Plan] = {}
    for request in requests:
        inputs = bound[str(request.table.name)]
        plans[str(request.table.name)] = Plan(request, inputs, [b.facts(store) for b in inputs.values()], choice)
    return CyclePlan(plans, start)


def _classified(inputs: Mapping[str, BoundInput], store: DeltaStore) -> dict[str, BoundInput]:
    return {name: b.classified(store) for name, b in inputs.items()}


def _joint_inputs(given: Sequence[Mapping[str, BoundInput]], store: DeltaStore) -> dict[str, BoundInput]:
    joint: dict[str, BoundInput] = {}
    for inputs in given:
        for name, bound in inputs.items():
            known = joint.get(name, bound)
            columns = tuple(dict.fromkeys((*known.columns, *bound.columns)))
            joint[name] = replace(known, columns=columns, summary=None)
    return _classified(joint, store)


def _reinit_reason(requests: Sequence[Request], worker: Worker) -> str | None:
    """Why the stored rows of the members are no base for a delta; None if they are."""
    for request in requests:
        if (reason := reinit_reason(request.table)) is not None:
            return reason
    for request in requests:
        if (reason := moved_on(request.table, worker)) is not None:
            return reason
    if were_refreshed_together([(r.table, r.compiled) for r in requests], worker.store):
        return None
    return f"{Reason.REINIT}: its members were not refreshed together"


def were_refreshed_together(members: Sequence[tuple[StreamTable, Compiled]], store: DeltaStore) -> bool:
    """Whether each member's contents follow from what the others have stored, and from one version of each source."""
    tables = {str(table.name): table for table, _ in members}
    seen: dict[str, int | None] = {}
    for table, compiled in members:
        for name in compiled.sources:
            version = table.frontier.get(name)
            if name not in tables:
                if seen.setdefault(name, version) != version:
                    return False
                continue
            stage = tables[name].public_stage
            if version is None or stage.version is None:
                return False
            # maintenance rewrites files in versions of their own
            moved = version != stage.version and store.classify(stage.path, version, stage.version).kind
            if moved and moved is not RangeKind.NOTHING:
                return False
    return True


def _without_losses(facts: InputFacts, bound: BoundInput, store: DeltaStore) -> InputFacts:
    """The facts about an input, as appended if its change takes no row away: an update may concern unused columns."""
    if facts.change not in (Change.MUTATED, Change.REPLACED):
        return facts
    net = bound.changes(store).groupBy(*map(quote, bound.columns)).agg(f.sum(WEIGHT).alias(WEIGHT))
    is_losing = not net.where(f.col(WEIGHT) < 0).isEmpty()
    return facts if is_losing else replace(facts, change=Change.APPENDED)
