"""Refreshes: their history, and the intent of the one that is under way."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.models import Frontier, Intent, Load, RefreshOutcome, RefreshStart
from millstream.catalog.schema import intents, refresh_history, stream_tables
from millstream.catalog.stores import counters
from millstream.catalog.stores.storable import storable
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshStatus, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_FROM_SCRATCH = (Action.FULL, Action.REINITIALIZE)

# Built once: for a refresh that finds nothing to do, building the statements would cost more than running them.
_suspended = stream_tables.c.status == Status.SUSPENDED
_unmarked = stream_tables.c.reinit_mark == sa.bindparam("seen_mark")
# What every success sets, in addition to its parameters. A table that was suspended meanwhile stays suspended.
SUCCEED = (
    sa.update(stream_tables)
    .where(stream_tables.c.id == sa.bindparam("of_id"))
    .values(
        consecutive_errors=0,
        status=sa.case((_suspended, stream_tables.c.status), else_=sa.literal(Status.ACTIVE.value)),
        status_reason=sa.case((_suspended, stream_tables.c.status_reason), else_=sa.null()),
    )
)
_SUCCEED_FROM_SCRATCH = SUCCEED.values(
    needs_reinit=sa.case((_unmarked, sa.false()), else_=stream_tables.c.needs_reinit),
    reinit_reason=sa.case((_unmarked, sa.null()), else_=stream_tables.c.reinit_reason),
)
INSERT = sa.insert(refresh_history)
_STATUS = sa.select(refresh_history.c.status).where(refresh_history.c.refresh_id == sa.bindparam("of_id"))


def intended(connection: Connection, refresh_id: int, start: RefreshStart, now: datetime) -> Intent:
    """What a refresh will commit; not recorded."""
    return _intent(refresh_id, start, _mark_and_refresh(connection, start.table_id)[0], now)


def begin(connection: Connection, refresh_id: int, start: RefreshStart, now: datetime) -> Intent:
    """Record a running refresh and what it will commit."""
    intent = _intent(refresh_id, start, mark_of_idle_table(connection, start.table_id), now)
    row = new_row(refresh_id, start.table_id, start.action, RefreshStatus.RUNNING, start.initiated_by, now)
    row |= {
        "data_timestamp": start.data_timestamp,
        "reason": start.reason,
        "freshness_deadline": start.freshness_deadline,
    }
    connection.execute(INSERT, row)
    counted = counters.parameters(refresh_id, RefreshStatus.RUNNING, start.action, now)
    counters.count(connection, start.table_id, counted)
    connection.execute(
        sa.insert(intents).values(
            stream_table_id=intent.table_id,
            refresh_id=refresh_id,
            action=intent.action,
            data_timestamp=intent.data_timestamp,
            old_frontier=intent.old_frontier,
            new_frontier=intent.new_frontier,
            base_frontier=intent.base_frontier,
            reinit_mark=intent.reinit_mark,
            created_at=now,
        )
    )
    return intent


def _intent(refresh_id: int, start: RefreshStart, mark: int, now: datetime) -> Intent:
    return Intent(
        table_id=start.table_id,
        refresh_id=refresh_id,
        action=start.action,
        data_timestamp=start.data_timestamp,
        old_frontier=dict(start.old_frontier),
        new_frontier=dict(start.new_frontier),
        base_frontier=dict(start.base_frontier),
        reinit_mark=mark,
        created_at=now,
    )


def complete(connection: Connection, intent: Intent, outcome: RefreshOutcome, now: datetime) -> None:
    """Record what a refresh committed. The caller updates the stages."""
    _succeed(connection, intent, outcome, now)
    close_intent(connection, intent)
    _finish(connection, intent, _completed(intent, outcome), now, outcome.duration_ms)


def loaded(connection: Connection, load: Load, now: datetime) -> None:
    """Record the load of a stream table's new definition, also as a refresh."""
    intent, outcome = load.intent, load.outcome
    _succeed(connection, intent, outcome, now)
    row = new_row(
        intent.refresh_id, intent.table_id, intent.action, RefreshStatus.RUNNING, load.initiated_by, intent.created_at
    )
    connection.execute(INSERT, row | {"data_timestamp": intent.data_timestamp, "reason": load.reason})
    started = counters.parameters(intent.refresh_id, RefreshStatus.RUNNING, intent.action, intent.created_at)
    counters.count(connection, intent.table_id, started)
    _finish(connection, intent, _completed(intent, outcome), now, outcome.duration_ms)


def supersede(connection: Connection, table_id: str, refresh_id: int, now: datetime) -> None:
    """Abandon a refresh that was interrupted: its definition is replaced."""
    connection.execute(sa.delete(intents).where(intents.c.stream_table_id == table_id))
    message = "the process ended during the refresh, and then the definition was replaced"
    _interrupt(connection, table_id, refresh_id, message, now)


def resolve_running(connection: Connection, now: datetime) -> int:
    """Close the rows of refreshes whose intent is gone: no process can end them any more."""
    h = refresh_history.c
    is_open = sa.exists().where(intents.c.refresh_id == h.refresh_id)
    found = sa.select(h.stream_table_id, h.refresh_id).where(h.status == RefreshStatus.RUNNING, ~is_open)
    rows = connection.execute(found.order_by(h.refresh_id)).all()
    for table_id, refresh_id in rows:
        _lock_table(connection, table_id)
        _interrupt(connection, table_id, refresh_id, "the process ended during the refresh", now)
    return len(rows)


def _interrupt(connection: Connection, table_id: str, refresh_id: int, message: str, now: datetime) -> None:
    """Set the row of a refresh that is still RUNNING to FAILED, without counting an error of the table."""
    h = refresh_history.c
    running = sa.select(h.action, h.start_time).where(h.refresh_id == refresh_id, h.status == RefreshStatus.RUNNING)
    row = connection.execute(running).first()
    if row is None:
        return
    values = {
        "status": RefreshStatus.FAILED,
        "error_code": Code.REFRESH_FAILED,
        "error_message": storable(message),
        "end_time": now,
        "duration_ms": milliseconds(row.start_time, now),
    }
    connection.execute(sa.update(refresh_history).where(h.refresh_id == refresh_id).values(values))
    before = RefreshStatus.RUNNING
    counted = counters.parameters(refresh_id, RefreshStatus.FAILED, row.action, now, before=before)
    counters.count(connection, table_id, counted)


def _succeed(connection: Connection, intent: Intent, outcome: RefreshOutcome, now: datetime) -> None:
    values = moved(intent.table_id, intent.data_timestamp, intent.new_frontier, intent.base_frontier, now)
    values["is_populated"] = True
    if (outcome.action or intent.action) in _FROM_SCRATCH:
        connection.execute(_SUCCEED_FROM_SCRATCH, values | {"seen_mark": intent.reinit_mark})
    else:
        connection.execute(SUCCEED, values)


def _completed(intent: Intent, outcome: RefreshOutcome) -> dict[str, Any]:
    finished = {
        "action": outcome.action or intent.action,
        "status": RefreshStatus.COMPLETED,
        "rows_inserted": outcome.rows_inserted,
        "rows_updated": outcome.rows_updated,
        "rows_deleted": outcome.rows_deleted,
        "details": {} if outcome.details is None else outcome.details.dump(),
        "error_code": None,
        "error_message": None,
    }
    return finished if outcome.reason is None else {**finished, "reason": outcome.reason}


def fail(
    connection: Connection,
    intent: Intent,
    error: MillstreamError,
    now: datetime,
    *,
    max_consecutive_errors: int | None,
    keep_intent: bool,
    duration_ms: float | None,
) -> None:
    """Record that a refresh failed."""
    _count_error(connection, intent.table_id, error, now, max_consecutive_errors)
    if keep_intent:
        check_intent(connection, intent)
    else:
        close_intent(connection, intent)
    values = {
        "action": intent.action,
        "status": RefreshStatus.FAILED,
        "error_code": error.code,
        "error_message": storable(error.message),
    }
    _finish(connection, intent, values, now, duration_ms)


def fail_early(
    connection: Connection,
    refresh_id: int,
    table_id: str,
    error: MillstreamError,
    initiated_by: InitiatedBy,
    started_at: datetime,
    now: datetime,
    *,
    max_consecutive_errors: int | None,
    freshness_deadline: datetime | None,
) -> None:
    """Record a refresh that failed before its intent was recorded."""
    _count_error(connection, table_id, error, now, max_consecutive_errors)
    row = new_row(refresh_id, table_id, None, RefreshStatus.FAILED, initiated_by, started_at)
    row |= {
        "end_time": now,
        "duration_ms": milliseconds(started_at, now),
        "error_code": error.code,
        "error_message": storable(error.message),
        "freshness_deadline": freshness_deadline,
    }
    connection.execute(INSERT, row)
    counters.count(connection, table_id, counters.parameters(refresh_id, RefreshStatus.FAILED, None, now))


def skip(
    connection: Connection,
    refresh_id: int,
    table_id: str,
    initiated_by: InitiatedBy,
    reason: str,
    now: datetime,
    freshness_deadline: datetime | None,
) -> None:
    """Record a refresh that was due but skipped."""
    counted = counters.parameters(refresh_id, RefreshStatus.SKIPPED, Action.SKIP, now)
    counters.count(connection, table_id, counted)
    row = new_row(refresh_id, table_id, Action.SKIP, RefreshStatus.SKIPPED, initiated_by, now)
    row |= {"end_time": now, "duration_ms": 0.0, "reason": reason, "freshness_deadline": freshness_deadline}
    connection.execute(INSERT, row)


def close_intent(connection: Connection, intent: Intent) -> None:
    """Delete an intent. Here a process that lost its lock detects that another one has recovered the refresh."""
    if connection.execute(sa.delete(intents).where(_is(intent))).rowcount != 1:
        raise _no_longer_open(intent)


def check_intent(connection: Connection, intent: Intent) -> None:
    """Raise if another process has closed an intent."""
    if connection.execute(sa.select(intents.c.refresh_id).where(_is(intent))).first() is None:
        raise _no_longer_open(intent)


def abandon(connection: Connection, intent: Intent, reason: str, now: datetime) -> None:
    """Close the intent of a refresh that committed nothing; a row still RUNNING becomes FAILED."""
    _lock_table(connection, intent.table_id)
    close_intent(connection, intent)
    _interrupt(connection, intent.table_id, intent.refresh_id, reason, now)


def _lock_table(connection: Connection, table_id: str) -> None:
    """A drop locks a table's row, then its intent and history: with this order, no two transactions deadlock."""
    connection.execute(sa.select(stream_tables.c.id).where(stream_tables.c.id == table_id).with_for_update())


def prune(connection: Connection, before: datetime, at_most: int) -> int:
    """Delete the oldest rows of refreshes that ended before a time, except the newest row of each table.

    A row whose refresh may still be recovered stays.
    """
    c, old = refresh_history.c, _is_prunable(before)
    # A list of ids may be too long for a statement: all prunable rows up to the last one are deleted.
    last = connection.execute(
        sa.select(sa.func.max(sa.select(c.refresh_id).where(old).order_by(c.refresh_id).limit(at_most).subquery().c[0]))
    ).scalar()
    if last is None:
        return 0
    return connection.execute(sa.delete(refresh_history).where(old, c.refresh_id <= last)).rowcount


def prunable(connection: Connection, before: datetime) -> int:
    """How many rows `prune` would delete."""
    counted = sa.select(sa.func.count()).select_from(refresh_history).where(_is_prunable(before))
    return int(connection.execute(counted).scalar_one())


def _is_prunable(before: datetime) -> sa.ColumnElement[bool]:
    c = refresh_history.c
    newest = sa.select(sa.func.max(c.refresh_id)).group_by(c.stream_table_id)
    is_open = sa.exists().where(intents.c.refresh_id == c.refresh_id)
    return sa.and_(c.end_time < before, c.refresh_id.not_in(newest), ~is_open)


def _count_error(
    connection: Connection, table_id: str, error: MillstreamError, now: datetime, max_consecutive_errors: int | None
) -> None:
    """Count one more error in a row; the last one allowed sets the table to ERROR, unless it is suspended.

    With None for the number that is allowed, the error is one that a retry may resolve, and does not count.
    """
    if max_consecutive_errors is None:
        return
    errors = stream_tables.c.consecutive_errors + 1
    too_many = (errors >= max_consecutive_errors) & (stream_tables.c.status != Status.SUSPENDED)
    reason = storable(f"{error.code}: {error.message}")
    values = {
        "consecutive_errors": errors,
        "status": sa.case((too_many, sa.literal(Status.ERROR.value)), else_=stream_tables.c.status),
        "status_reason": sa.case((too_many, sa.literal(reason)), else_=stream_tables.c.status_reason),
        "updated_at": now,
    }
    connection.execute(sa.update(stream_tables).where(stream_tables.c.id == table_id).values(values))


def _is(intent: Intent) -> sa.ColumnElement[bool]:
    return (intents.c.stream_table_id == intent.table_id) & (intents.c.refresh_id == intent.refresh_id)


def _no_longer_open(intent: Intent) -> MillstreamError:
    return MillstreamError(
        Code.COMMIT_CONFLICT,
        f"refresh {intent.refresh_id} is no longer open: another process recovered it, or the table was dropped",
        hint="refresh again",
    )


def mark_of_idle_table(connection: Connection, table_id: str) -> int:
    """How often a table was marked for reinitialisation; raises if it was dropped or has an open refresh."""
    mark, refresh_id, name = _mark_and_refresh(connection, table_id)
    if refresh_id is not None:
        raise open_refresh(name, refresh_id)
    return mark


def _mark_and_refresh(connection: Connection, table_id: str) -> tuple[int, int | None, TableName]:
    """How often a table was marked for reinitialisation, and its open refresh; raises if it was dropped."""
    chosen = (
        sa.select(stream_tables.c.reinit_mark, stream_tables.c.schema_name, stream_tables.c.name, intents.c.refresh_id)
        .outerjoin_from(stream_tables, intents)
        .where(stream_tables.c.id == table_id)
        .with_for_update(of=stream_tables)
    )
    row = connection.execute(chosen).first()
    if row is None:
        raise MillstreamError(Code.NOT_A_STREAM_TABLE, f"there is no stream table with the id {table_id}")
    return int(row.reinit_mark), row.refresh_id, TableName(row.schema_name, row.name)


def open_refresh(name: TableName, refresh_id: int) -> MillstreamError:
    """The error for a table whose last refresh has not ended."""
    return MillstreamError(
        Code.REFRESH_OPEN, f"refresh {refresh_id} of {name} has not ended", hint="refresh the table to recover it"
    )


def moved(
    table_id: str, data_timestamp: datetime, frontier: Frontier, base_frontier: Frontier, now: datetime
) -> dict[str, Any]:
    """The parameters of `SUCCEED`."""
    return {
        "of_id": table_id,
        "data_timestamp": data_timestamp,
        "frontier": dict(frontier),
        "base_frontier": dict(base_frontier),
        "last_refresh_at": now,
        "updated_at": now,
    }


def _finish(
    connection: Connection, intent: Intent, values: dict[str, Any], now: datetime, duration_ms: float | None
) -> None:
    took = milliseconds(intent.created_at, now) if duration_ms is None else duration_ms
    before = RefreshStatus(connection.execute(_STATUS, {"of_id": intent.refresh_id}).scalar_one())
    change = sa.update(refresh_history).where(refresh_history.c.refresh_id == intent.refresh_id)
    connection.execute(change.values(**values, end_time=now, duration_ms=took))
    inserted, updated, deleted = (values.get(f"rows_{kind}", 0) for kind in ("inserted", "updated", "deleted"))
    counted = counters.parameters(
        intent.refresh_id,
        values["status"],
        values["action"],
        now,
        before=before,
        rows=(inserted, updated, deleted),
        duration_ms=took,
    )
    counters.count(connection, intent.table_id, counted)


def new_row(
    refresh_id: int,
    table_id: str,
    action: Action | None,
    status: RefreshStatus,
    initiated_by: InitiatedBy,
    start_time: datetime,
) -> dict[str, Any]:
    """A row of the history, as `INSERT` needs it."""
    return {
        "refresh_id": refresh_id,
        "stream_table_id": table_id,
        "action": action,
        "status": status,
        "initiated_by": initiated_by,
        "start_time": start_time,
        "rows_inserted": 0,
        "rows_updated": 0,
        "rows_deleted": 0,
        "details": {},
    }


def milliseconds(start: datetime, end: datetime) -> float:
    """The time from one moment to another."""
    return (end - start).total_seconds() * 1000
