"""Refreshes stream tables for a command, and shows how each has fared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.cli import formats
from millstream.cli.invocation import Session
from millstream.cli.output import Column
from millstream.results import RefreshOutcome, RefreshResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one table: the fields of `RefreshResult`, or the error."""

    name: str
    action: str | None = None
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    duration_ms: float | None = None
    reason: str | None = None
    frontier: object = None
    error: object = None


_COLUMNS = (
    Column("table", "name"),
    Column("action", "action"),
    Column("inserted", "rows_inserted", number=True),
    Column("updated", "rows_updated", number=True),
    Column("deleted", "rows_deleted", number=True),
    Column("time", "duration_ms", formats.milliseconds, number=True),
    Column("reason", "reason", prose=True),
)


def refresh_tables(session: Session, names: Sequence[str] | None, *, full: bool) -> int:
    """Refresh the named tables, or all; returns the exit code: 1 if one could not be refreshed."""
    mode = "FULL" if full else None
    with session.connect() as ms, session.progress.working(f"refreshing {', '.join(names or ['all stream tables'])}"):
        if names and len(names) == 1:
            outcomes = [_refreshed(names[0], ms.refresh_stream_table(names[0], mode=mode))]
        else:
            outcomes = [_outcome(found) for found in ms.refresh_stream_tables(names or None, mode=mode)]
    session.output.records(outcomes, _COLUMNS, empty="There are no stream tables to refresh.")
    return int(any(o.error for o in outcomes))


def _outcome(found: RefreshOutcome) -> Outcome:
    if found.error is not None:
        error = found.error
        return Outcome(found.name, "FAILED", reason=f"[{error.code}] {error.message}", error=error.as_dict())
    if found.result is None:
        return Outcome(
            found.name, "WAITING", reason=f"waits for {found.waits_for}", error=f"waits for {found.waits_for}"
        )
    return _refreshed(found.name, found.result)


def _refreshed(name: str, result: RefreshResult) -> Outcome:
    return Outcome(
        name,
        str(result.action),
        result.rows_inserted,
        result.rows_updated,
        result.rows_deleted,
        result.duration_ms,
        result.reason,
        result.frontier,
    )
