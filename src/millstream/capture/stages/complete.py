"""Records where a tick has brought a database and its mirrors, in one transaction of the catalog."""

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
    """Record what was landed; gives also why a move to the WAL has to be abandoned, if it has to."""
    database, obstacle = state.database, None
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
        after, obstacle = _switched(context, snapshot, after, state.followed, reading.hindrance)
    modes.add(after.mode)
    changed = [c for c in state.captures.values() if c != state.recorded[c.id]]
    forgets = bool(landed.touched or state.quarantined or CaptureMode.WAL in modes)
    context.catalog.put_database(after, captures=changed, is_seen=is_seen, is_durable=forgets)
    return replace(state, database=after, recorded=state.captures), obstacle


def _with_captures(context: TickContext, state: TickState, reading: Reading, landed: Landed) -> TickState:
    """The captures as they are after the tick; what reads their tables learns what became of these."""
    before, captures = state.database, dict(state.captures)
    for capture in state.captures.values():
        verdict = landed.verdicts[capture.id]
        if capture.id in state.quarantined:
            verdict = replace(verdict, action=Action.QUARANTINE)
        is_back = bool(state.recorded[capture.id].state.missing)
        context.dependents.update_lake_object(capture, verdict.action, verdict.reason, is_back=is_back)
        if capture.id in reading.ahead:
            continue
        is_landed = capture.id in landed.touched
        pending = state.reasons.get(capture.id) if not is_landed else None
        after = after_tick(capture, verdict, before, is_landed=is_landed, pending=pending)
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
    """The database in the other mode from now on, if this tick can be the last one in its mode; or why it cannot."""
    if database.mode is CaptureMode.TRANSITIONING:
        try:
            return context.switch.finish(snapshot, database, followed), None
        except MillstreamError as error:
            return database, error_line(error)
    return back_to_triggers(database, followed, hindrance) or database, None
