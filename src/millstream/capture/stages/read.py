"""Reads the changes of the followed tables up to a snapshot, and makes them durable in the database."""

from __future__ import annotations

from dataclasses import replace

from millstream.capture.change_readers import Reading, RereadError, read_buffers, read_slot
from millstream.capture.landing import moved
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.capture.tick_plan import TickPlan
from millstream.capture.tick_state import TickContext, TickState
from millstream.catalog.attached import CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.triggers.trims import record_mark
from millstream.sources.postgres.wal.slot import can_flush_within_transaction, flush_wal


def read(context: TickContext, state: TickState, snapshot: SourceSnapshot, plan: TickPlan) -> Reading:
    """Read the changes of the tables that the plan follows.

    Raises:
        RereadError: tables whose recorded changes are not enough, or whose mirrors are at an unexpected version.
        MillstreamError: CAPTURE_LOST if the WAL does not have all changes; DATABASE_UNFIT, ...
    """
    following = [state.captures[id_] for id_ in plan.follow]
    if state.database.mode is CaptureMode.WAL:
        others = [c for c in state.followed if c.id not in plan.follow]
        reading = read_slot(context.connection, snapshot, state.database, following, others)
    else:
        reading = _made_durable(context, state, snapshot, read_buffers(snapshot, state.database, following))
    found = {id_: moved(context.worker.store, state.captures[id_]) for id_ in reading.changes}
    if wrong := {id_: reason for id_, reason in found.items() if reason is not None}:
        raise RereadError(wrong)
    return reading


def _made_durable(context: TickContext, state: TickState, snapshot: SourceSnapshot, reading: Reading) -> Reading:
    """Make the changes durable that are about to count as read, so that a crash cannot undo them.

    If changes are landed, a mark does this. A mark is a transaction, after which the next tick would not be idle: so
    none is written if there is nothing to land, or if a failed comparison is retried. The WAL is then flushed.
    """
    is_free, is_marked = snapshot.connection is not context.connection, False
    compared = [state.captures[id_].state for id_ in state.reasons]
    if reading.changes or any(c.buffer is not None and c.quarantine is None for c in compared):
        is_marked = _write_mark(context, state, snapshot, is_free=is_free)
    if not is_marked:
        is_free = is_free or can_flush_within_transaction(context.connection)
        flush_wal(context.connection if is_free else context.second())
    snapshot.connection.execute("SELECT")  # fails if the server has restarted since the snapshot was taken
    return replace(reading, mark=snapshot.position) if is_marked else reading


def _write_mark(context: TickContext, state: TickState, snapshot: SourceSnapshot, *, is_free: bool) -> bool:
    """Write a mark, and return whether it was written; without a second connection the tick continues without one."""
    try:
        connection = context.connection if is_free else context.second()
    except MillstreamError as error:
        if error.code is not Code.DATABASE_UNREACHABLE:
            raise
        return False
    return record_mark(connection, state.database.state.buffer_schema, snapshot.position, state.started)
