"""`refresh`: bring stream tables up to date."""

from collections.abc import Sequence
from typing import Annotated

import typer

from millstream.cli.facade import Facade
from millstream.cli.invocation import Session
from millstream.cli.refresh_outcomes import refresh_tables
from millstream.cli.session import verb
from millstream.results import Status

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="The stream tables.")]
AllOption = Annotated[bool, typer.Option("--all", help="All stream tables that are not suspended.")]


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
    if code := refresh_tables(session, names, full=full):
        raise typer.Exit(code)


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
