"""`refresh`: bring stream tables up to date."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from millstream.cli import formats
from millstream.cli.facade import Facade
from millstream.cli.output import Column
from millstream.cli.session import Session, verb
from millstream.results import RefreshOutcome, RefreshResult, Status

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="The stream tables.")]
AllOption = Annotated[bool, typer.Option("--all", help="All stream tables that are not suspended.")]


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


@verb
def refresh(
    session: Session,
    names: NamesArgument = None,
    all_tables: AllOption = False,
    full: Annotated[bool, typer.Option("--full", help="Recompute the named tables in full.")] = False,
) -> None:
    """Refresh stream tables in one pass, each after the stream tables it reads.

    All are brought to the same state of what they read. If one fails, those that do not read it are still refreshed,
    and the exit code is 1.

    Example:

      millstream refresh customer_totals
      millstream refresh --all --json
    """
    if bool(names) == all_tables:
        raise typer.BadParameter("give the names of stream tables, or --all")
    mode = "FULL" if full else None
    with session.connect() as ms, session.progress.working(f"refreshing {', '.join(names or ['all stream tables'])}"):
        if names and len(names) == 1:
            outcomes = [_refreshed(names[0], ms.refresh_stream_table(names[0], mode=mode))]
        else:
            outcomes = [_outcome(found) for found in ms.refresh_stream_tables(names or None, mode=mode)]
    session.output.records(outcomes, _COLUMNS, empty="There are no stream tables to refresh.")
    if any(o.error for o in outcomes):
        raise typer.Exit(1)


@verb
def cancel(session: Session, name: Annotated[str, typer.Argument(help="The stream table.")]) -> None:
    """Cancel the running refresh of a stream table, also one of `millstream run`.

    The old contents stay readable, and nothing counts as an error. By its schedule, the table is refreshed again:
    suspend it first if it should not be.

    Example:

      millstream cancel customer_totals
    """
    with session.connect() as ms:
        is_running = ms.cancel(name)
    said = f"the refresh of {name} is being cancelled" if is_running else f"no refresh of {name} is running"
    session.output.done(said, {"name": name, "is_cancelled": is_running})


def chosen(ms: Facade, names: Sequence[str] | None, all_tables: bool) -> list[str]:
    """The tables a command applies to; with --all, in dependency order.

    Raises:
        typer.BadParameter: names were given together with --all, or neither.
    """
    if bool(names) == all_tables:
        raise typer.BadParameter("give the names of stream tables, or --all")
    if names:
        return list(names)
    active = {s.name for s in ms.status() if s.status is not Status.SUSPENDED}
    return [name for name in ms.dag().nodes if name in active]


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
