"""Records the new position of a database and its mirrors, in one transaction of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.capture.change_readers import Reading, without_published
from millstream.capture.drift import Action, after_tick
from millstream.capture.mode_switch import back_to_triggers
from millstream.capture.orphans import with_orphans
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.capture.stages.land import Landed
from millstream.capture.tick_state import TickContext, TickState
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.errors import MillstreamError
from millstream.postgres.identity import Identity
from millstream.reasons import Reason
from millstream.sources.postgres.wal.mode_switch import error_line


def complete(
    context: TickContext, state: TickState, snapshot: SourceSnapshot, reading: Reading, landed: Landed
) -> tuple[TickState, str | None]:
    """Record what was landed; also returns why a switch to the WAL has to be abandoned, or None."""
    database, hindrance = state.database, None
    if snapshot.identity != Identity.recorded(database):
        context.dependents.reinitialise(database.name, f"{Reason.DATABASE_REPLACED}: {database.name} was replaced")
    state = _with_captures(context, state, reading, landed)
    views = context.dependents.see_views(snapshot.connection, database.name) or state.database.state.views
    is_seen = views != state.database.state.views
    after = replace(
        state.database,
        system=snapshot.identity.system,
        timeline=snapshot.identity.timeline,
        database=snapshot.identity.database,
        database_oid=snapshot.identity.oid,
        position=reading.position,
        reached_at=context.now(),
        last_tick=landed.tick_id,
        open_tick=None,
        state=replace(
            state.database.state,
            server_started=state.started,
            mark=reading.mark or state.database.state.mark,
            views=views,
        ),
    )
    if reading.unpublished:
        after = without_published(after, reading.unpublished)
    modes = {after.mode}
    if reading.is_complete:
        after, hindrance = _switched(context, snapshot, after, state.followed, reading.hindrance)
    modes.add(after.mode)
    changed = [c for c in state.captures.values() if c != state.recorded[c.id]]
    forgets = bool(landed.touched or state.quarantined or CaptureMode.WAL in modes)
    context.catalog.put_database(after, captures=changed, is_seen=is_seen, is_durable=forgets)
    return replace(state, database=after, recorded=state.captures), hindrance


def _with_captures(context: TickContext, state: TickState, reading: Reading, landed: Landed) -> TickState:
    """The captures after the tick; updates the lake's objects for their tables."""
    before, captures = state.database, dict(state.captures)
    for capture in state.captures.values():
        decision = landed.decisions[capture.id]
        if capture.id in state.quarantined:
            decision = replace(decision, action=Action.QUARANTINE)
        is_back = bool(state.recorded[capture.id].state.missing)
        context.dependents.update_lake_object(capture, decision.action, decision.reason, is_back=is_back)
        if capture.id in reading.ahead:
            continue
        is_landed = capture.id in landed.touched
        pending = state.reasons.get(capture.id) if not is_landed else None
        after = after_tick(capture, decision, before, is_landed=is_landed, pending=pending)
        if capture.state.buffer is not None and after.state.buffer is None:
            state = replace(state, database=with_orphans(state.database))
        captures[capture.id] = after
    return replace(state, captures=captures)


def _switched(
    context: TickContext,
    snapshot: SourceSnapshot,
    database: AttachedDatabase,
    followed: Sequence[Capture],
    hindrance: str | None,
) -> tuple[AttachedDatabase, str | None]:
    """The database, switched to the other mode if this tick can be the last one in its mode; and why it cannot be."""
    if database.mode is CaptureMode.TRANSITIONING:
        try:
            return context.switch.finish(snapshot, database, followed), None
        except MillstreamError as error:
            return database, error_line(error)
    return back_to_triggers(database, followed, hindrance) or database, None
