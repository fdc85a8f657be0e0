"""Reads the changes of the followed tables up to a snapshot, and makes durable in the database what was read."""

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
        RereadError: tables whose changes do not show what became of them, or whose mirrors have moved.
        MillstreamError: CAPTURE_LOST if the WAL does not have all changes; DATABASE_UNFIT, ...
    """
    following = [state.captures[id_] for id_ in plan.follow]
    if state.database.mode is CaptureMode.WAL:
        others = [c for c in state.followed if c.id not in plan.follow]
        reading = read_slot(context.connection, snapshot, state.database, following, others)
    else:
        reading = _made_durable(context, state, snapshot, read_buffers(snapshot, state.database, following))
    found = {id_: moved(context.worker.store, state.captures[id_]) for id_ in reading.windows}
    if wrong := {id_: reason for id_, reason in found.items() if reason is not None}:
        raise RereadError(wrong)
    return reading


def _made_durable(context: TickContext, state: TickState, snapshot: SourceSnapshot, reading: Reading) -> Reading:
    """Make durable what is about to be counted as read, which a crash must not undo; with a mark if it is landed.

    Without a mark where there is nothing to land, or a failed comparison is tried again: a mark is a transaction, and
    after it no tick would find that nothing was written. Then the WAL is flushed, unless it is durable already.
    """
    is_free, is_marked = snapshot.connection is not context.connection, False
    compared = [state.captures[id_].state for id_ in state.reasons]
    if reading.windows or any(c.buffer is not None and c.quarantine is None for c in compared):
        is_marked = _write_mark(context, state, snapshot, is_free=is_free)
    if not is_marked:
        is_free = is_free or can_flush_within_transaction(context.connection)
        flush_wal(context.connection if is_free else context.second())
    snapshot.connection.execute("SELECT")  # fails unless the server that gave the snapshot is still running
    return replace(reading, mark=snapshot.position) if is_marked else reading


def _write_mark(context: TickContext, state: TickState, snapshot: SourceSnapshot, *, is_free: bool) -> bool:
    """Whether a mark was written: the role may have no second connection, and then the tick goes on without one."""
    try:
        connection = context.connection if is_free else context.second()
    except MillstreamError as error:
        if error.code is not Code.DATABASE_UNREACHABLE:
            raise
        return False
    return record_mark(connection, state.database.state.buffer_schema, snapshot.position, state.started)
