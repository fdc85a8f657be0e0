"""A tick: brings all mirrors of a database to one snapshot of it.

A tick reads the changes first; then it records itself; the commit to each mirror carries its number; and the catalog is
updated last, in one transaction. If the process dies in between, the record of the tick stays, and the next tick reads
the position of each mirror from its last commit and continues from there. So mirrors can be at different positions
between ticks, but their versions are handed out only when all are at the same one; a table that cannot be brought there
is quarantined.

`run_tick` makes a plan (`tick_plan`) and lets the stages execute it, until an attempt reaches its snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import assert_never

from millstream.capture.change_readers import Reading, RereadError
from millstream.capture.drift import Action, Decision
from millstream.capture.landing import recover
from millstream.capture.mode_switch import with_loss
from millstream.capture.orphans import remove_orphans
from millstream.capture.refused_writes import accept_writes
from millstream.capture.rollback_detection import is_older, unrecognised
from millstream.capture.source_snapshot import SourceSnapshot, source_snapshot
from millstream.capture.stages.clean_up import clean_up
from millstream.capture.stages.complete import complete
from millstream.capture.stages.land import land
from millstream.capture.stages.poll import lockable, moved_mirrors, poll
from millstream.capture.stages.read import read
from millstream.capture.stages.reinstall import distrust, reinstall
from millstream.capture.tick_plan import (
    DatabaseStep,
    TickPlan,
    TickRequest,
    followed,
    is_idle,
    plan_outset,
    plan_tick,
    unasked,
)
from millstream.capture.tick_state import TickContext, Ticked, TickState, quarantine_tables
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.identity import Identity
from millstream.postgres.own_transactions import OwnTransactions
from millstream.reasons import CaptureReason, Reason
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.snapshot_transaction import DatabaseState, database_state
from millstream.sources.postgres.server.table_error import TableError
from millstream.sources.postgres.wal.mode_switch import error_line

_TRIES = 10


class _Outcome(Enum):
    DONE = auto()
    AGAIN = auto()
    """Tables need preparation before another attempt."""
    FEWER = auto()
    """Tables were quarantined."""
    PIECE = auto()
    """Part of the changes was landed."""


def run_tick(
    context: TickContext,
    request: TickRequest,
    database: AttachedDatabase,
    at_snapshot: Callable[[SourceSnapshot], None] | None = None,
) -> Ticked:
    """Bring the mirrors of a database forward; the caller holds the database's lock.

    Args:
        at_snapshot: called with the snapshot that the mirrors were brought to, while its transaction is open.

    Raises:
        MillstreamError: DATABASE_UNREACHABLE, DATABASE_UNFIT, SNAPSHOT_LOST, LOCK_TIMEOUT, ...
    """
    all_captures = context.catalog.captures(database.name)
    captures = {c.id: c for c in all_captures if c.version is not None}
    if database.open_tick is not None:
        database, captures = recover(context.catalog, context.worker.store, database, captures, context.progress)
    database = remove_orphans(context.connection, context.catalog, database, context.progress)
    here = database_state(context.connection)
    accepting = accept_writes(context.connection, context.catalog, database, all_captures, context.progress)
    if accepting != database:
        database, here = accepting, database_state(context.connection)
    moved = moved_mirrors(context.worker.store, captures.values()) if request.is_first else {}
    views = context.dependents.views(database.name)
    if is_idle(database, captures, (here.identity, _seen(context.own, database, here)), request, moved, views):
        return Ticked(database, captures, unasked(captures.values(), request), all_captures, is_idle=True)
    state = _prepare(context, request, database, captures, here, moved)
    tries = 0
    while tries < _TRIES:
        state, outcome = _attempt(context, request, state, at_snapshot)
        if outcome is _Outcome.DONE:
            return Ticked(state.database, state.captures, state.quarantined, all_captures)
        tries += outcome is _Outcome.AGAIN
    raise MillstreamError(
        Code.LOCK_TIMEOUT,
        f"the tables of {database.name} kept changing through concurrent DDL; gave up after {_TRIES} attempts",
        hint="refresh again when the DDL has finished",
    )


def _seen(own: OwnTransactions, database: AttachedDatabase, here: DatabaseState) -> str:
    """The snapshot of a database; that of the last tick if only transactions of ours have ended since."""
    known = (database.position or {}).get("snapshot")
    if not known or known == here.snapshot:
        return here.snapshot
    before, now = PgSnapshot.parse(known), PgSnapshot.parse(here.snapshot)
    is_ours = now.covers(before) and own.include((here.identity.system, here.started), now.ended_since(before))
    return known if is_ours else here.snapshot


def _prepare(
    context: TickContext,
    request: TickRequest,
    database: AttachedDatabase,
    captures: Mapping[str, Capture],
    here: DatabaseState,
    moved: Mapping[str, str],
) -> TickState:
    """Do what the database as a whole needs before its changes are read."""
    outset = plan_outset(database, captures, here.identity, request, moved, context.now())
    is_known = outset.step is not DatabaseStep.START_OVER
    if is_known and is_older(context.connection, here, database, followed(captures, outset.quarantined)):
        database = unrecognised(database)
        context.catalog.put_database(database)  # at once: after enough new transactions it cannot be detected any more
        outset = plan_outset(database, captures, here.identity, request, moved, context.now())
    state = TickState(
        database=database,
        captures=captures,
        recorded=captures,
        reasons=outset.reasons,
        quarantined=outset.quarantined,
        identity=Identity.recorded(database),
        started=here.started,
    )
    match outset.step:
        case DatabaseStep.START_OVER:
            context.progress(f"{database.name} was replaced or restored: its tables are read again")
        case DatabaseStep.SWITCH_FORWARD:
            database = context.switch.forward(
                context.catalog, context.settings, context.now, context.connection, database, state.followed
            )
            state = replace(state, database=database)
        case DatabaseStep.PUBLISH:
            decision = Decision(Action.REINSTALL, CaptureReason.NOT_PUBLISHED)
            for id_ in outset.unpublished:
                state = replace(state, reasons={**state.reasons, id_: decision.reason})
                state = reinstall(context, state, id_, decision)
        case _:
            assert_never(outset.step)
    return state


def _attempt(
    context: TickContext,
    request: TickRequest,
    state: TickState,
    at_snapshot: Callable[[SourceSnapshot], None] | None,
) -> tuple[TickState, _Outcome]:
    """Take a snapshot, make a plan, and execute it or prepare the next attempt."""
    identity = database_state(context.connection).identity
    if identity != state.identity:
        state = distrust(context, replace(state, identity=identity), str(Reason.DATABASE_REPLACED))
    connection = context.second() if state.database.mode is CaptureMode.WAL else context.connection
    try:
        relations = lockable(context.connection, [state.captures[id_] for id_ in state.reasons])
        address, trusted = Address(state.database.address), context.settings.trusted_roles
        with source_snapshot(address, connection, relations, trusted) as snapshot:
            if snapshot.identity != state.identity:
                return state, _Outcome.AGAIN
            seen = poll(snapshot.connection, state.database, state.captures)
            ranges = NumericRanges.of(state.database)
            plan = plan_tick(state.captures, seen, ranges, state.reasons, state.quarantined, relations)
            state = state.with_plan(plan)
            reading = None
            if plan.is_executable:
                state, reading = _read(context, state, snapshot, plan)
                if reading is None:
                    return state, _Outcome.AGAIN
                state, landed = land(context, request, state, snapshot, plan, reading)
                state, hindrance = complete(context, state, snapshot, reading, landed)
                if reading.is_complete and at_snapshot is not None:
                    at_snapshot(snapshot)
    except TableError as error:
        if error.code is Code.SOURCE_CHANGED:  # the table disappeared before it was locked
            return state, _Outcome.AGAIN
        return quarantine_tables(context, state, error), _Outcome.FEWER
    if reading is None:
        for id_, decision in plan.reinstall.items():
            state = reinstall(context, state, id_, decision)
        return state, _Outcome.AGAIN
    state = clean_up(context, state, landed.touched, reading, hindrance)
    return state, _Outcome.DONE if reading.is_complete else _Outcome.PIECE


def _read(
    context: TickContext, state: TickState, snapshot: SourceSnapshot, plan: TickPlan
) -> tuple[TickState, Reading | None]:
    """Read the changes; the reading is None if tables have to be compared first, which the state then records."""
    try:
        return state, read(context, state, snapshot, plan)
    except RereadError as error:
        return replace(state, reasons={**state.reasons, **error.reasons}), None
    except MillstreamError as error:
        if state.database.mode is not CaptureMode.WAL or error.code is not Code.CAPTURE_LOST:
            raise
        state = distrust(context, state, error_line(error))
        return replace(state, database=with_loss(state.database, context.now(), error_line(error))), None
