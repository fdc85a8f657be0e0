"""Captures tables again whose changes were not recorded, so that the next attempt can compare them."""

from __future__ import annotations

from dataclasses import replace

from millstream.capture.change_buffers import with_buffer_for, without_buffer
from millstream.capture.drift import Decision
from millstream.capture.installation import Installation
from millstream.capture.orphans import leaving_wal, with_orphans
from millstream.capture.stages.poll import named_relation
from millstream.capture.tick_state import TickContext, TickState, quarantine
from millstream.catalog.attached import CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.server.relations import RelationKind


def distrust(context: TickContext, state: TickState, reason: str) -> TickState:
    """Mark all tables for comparison: earlier captured changes do not describe their current contents."""
    context.switch.close()
    database = with_orphans(leaving_wal(state.database))
    recorded = replace(database.state, mark=None)
    if database.mode is not CaptureMode.TRIGGER:
        recorded = replace(recorded, hindered=reason)
    captures = {}
    for capture in map(without_buffer, state.captures.values()):
        captures[capture.id] = replace(capture, state=replace(capture.state, resync=reason))
    return replace(state, database=replace(database, mode=CaptureMode.TRIGGER, state=recorded), captures=captures)


def reinstall(context: TickContext, state: TickState, capture_id: str, decision: Decision) -> TickState:
    """Capture a table again, if possible; a later snapshot is used to compare it with its mirror."""
    capture = state.captures[capture_id]
    relation = decision.relation or named_relation(context.connection, capture)
    if relation is None:
        return state
    if relation.kind is RelationKind.VIEW:  # reading it could run functions of its owner
        error = MillstreamError(
            Code.SOURCE_NO_CHANGE_FEED,
            f"{relation.qualified} was a table when it was captured, and is now a view",
            hint="redefine the stream tables that read it: their queries then read the view's underlying tables",
        )
        return quarantine(context, state, capture_id, error)
    context.progress(f"capturing {capture.name} again: {decision.reason}")
    state = _record_resync(context, state, capture_id, decision.reason, is_another=relation.oid != capture.oid)
    capture = replace(capture, oid=relation.oid, columns=decision.columns or capture.columns)
    if not capture.is_whole:
        installation = Installation(context.connection, context.catalog, state.database)
        try:
            capture, database = installation.capture(capture, relation)
        except MillstreamError as error:
            return quarantine(context, state, capture_id, error)
        state = replace(state, database=database)
    if capture.state.buffer is not None and decision.fingerprint is not None:
        capture = with_buffer_for(capture, decision.fingerprint.shape)
    return state.with_capture(replace(capture, state=replace(capture.state, missing=None, resync=decision.reason)))


def _record_resync(
    context: TickContext, state: TickState, capture_id: str, reason: str, *, is_another: bool
) -> TickState:
    """Record that a mirror has to be compared, before its buffer is dropped or its publication changes.

    The rest of the database's record stays as it is: this tick has completed nothing yet.

    Args:
        is_another: the table is captured in place of another table that had its name.
    """
    name = state.database.name
    database = context.catalog.find_database(name)
    capture = next((c for c in context.catalog.captures(name) if c.id == capture_id), None)
    if database is None or capture is None:
        return state
    marked = replace(capture, state=replace(capture.state, resync=reason))
    if is_another:
        database, state = with_orphans(database), replace(state, database=with_orphans(state.database))
    context.catalog.put_database(database, captures=[marked])
    return replace(state, recorded={**state.recorded, capture_id: marked})
