"""Brings mirrors forward: lands the changes that were read, and compares the tables that need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.capture.change_readers import Reading
from millstream.capture.drift import Decision
from millstream.capture.landing import Landing, make_durable, recovered
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.capture.tick_plan import TickPlan, TickRequest
from millstream.capture.tick_state import TickContext, TickState, quarantine
from millstream.catalog.attached import Capture, OpenTick
from millstream.catalog.capture_state import Position
from millstream.errors import MillstreamError


@dataclass(frozen=True)
class Landed:
    """What was landed in mirrors.

    Args:
        tick_id: the number of the tick.
        touched: the captures whose mirrors were brought forward.
        decisions: those of the plan, with new fingerprints for tables to whose captures columns were added.
    """

    tick_id: int
    touched: frozenset[str]
    decisions: Mapping[str, Decision]


def land(
    context: TickContext,
    request: TickRequest,
    state: TickState,
    snapshot: SourceSnapshot,
    plan: TickPlan,
    reading: Reading,
) -> tuple[TickState, Landed]:
    """Land the changes and compare the tables. The tick is recorded first, so that a later tick can recover."""
    resync = plan.resync if reading.is_complete else {}
    touched, before = {*reading.changes, *resync}, state.captures
    tick_id = state.database.last_tick
    if touched:
        state = _begin(context, state, reading.position, touched)
        tick_id = state.database.last_tick
    limit, metadata = context.settings.direct_max_rows, snapshot.metadata(reading.position)
    permit = context.catalog.check_leadership
    landing = Landing(context.worker, snapshot, tick_id, metadata, limit, context.progress, permit)
    for id_, changes in reading.changes.items():
        try:
            state = state.with_capture(landing.land(before[id_], plan.decisions[id_], changes))
        except MillstreamError as error:
            state = _quarantine_where_it_is(context, state, before[id_], error)
    wider = request.missing_columns(state.captures)
    for id_, reason in resync.items():
        try:
            after = landing.compare(before[id_], plan.decisions[id_], reason, wider.get(id_, ()))
            state = state.with_capture(after)
        except MillstreamError as error:
            state = _quarantine_where_it_is(context, state, before[id_], error)
    _check_locks_held(context, state, snapshot, [before[id_] for id_ in resync])
    make_durable(context.worker.store, {id_: state.recorded[id_] for id_ in touched}, state.captures)
    decisions = dict(plan.decisions)
    for id_, fingerprint in landing.fingerprints.items():
        decisions[id_] = replace(decisions[id_], fingerprint=fingerprint)
    return state, Landed(tick_id, frozenset(touched - state.quarantined.keys()), decisions)


def _begin(context: TickContext, state: TickState, position: Position, capture_ids: Collection[str]) -> TickState:
    """Record the tick, with a number above that of every commit to these mirrors."""
    store = context.worker.store
    made = [store.transaction_version(state.captures[id_].path, id_) or 0 for id_ in capture_ids]
    tick_id = max(state.database.last_tick, *made) + 1
    database = replace(state.database, last_tick=tick_id, open_tick=OpenTick(id=tick_id, position=position))
    context.catalog.put_database(database)
    return replace(state, database=database)


def _quarantine_where_it_is(
    context: TickContext, state: TickState, before: Capture, error: MillstreamError
) -> TickState:
    """Quarantine a table whose mirror could not be brought forward, at the position of the mirror's last commit."""
    tick = state.database.open_tick
    assert tick is not None
    capture = recovered(context.worker.store, before, tick, state.database.position)
    return quarantine(context, state.with_capture(capture), before.id, error)


def _check_locks_held(
    context: TickContext, state: TickState, snapshot: SourceSnapshot, compared: Sequence[Capture]
) -> None:
    """Check that the locks were held throughout the comparison; otherwise mark the tables for another comparison."""
    if snapshot.exported is None:
        return
    try:
        snapshot.exported.check()
    except MillstreamError as error:
        resync = f"{error.code}: {error.message}"
        marked = [replace(c, state=replace(c.state, resync=resync)) for c in compared]
        context.catalog.put_database(state.database, captures=marked)
        raise
