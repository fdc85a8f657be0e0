"""`demo`: see it work."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.session import Session, verb


@verb
def demo(
    session: Session,
    rows: Annotated[int | None, typer.Option(min=1, help="Orders to generate; the demo has its own default.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Build the lake in this directory and keep it.")] = None,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="Instead: a PostgreSQL, captured and served back into.")
    ] = False,
) -> None:
    """See stream tables at work on an e-commerce lake.

    Builds the lake with a chain of stream tables, changes a few rows, and compares the refresh with the full query.
    With --postgres it starts a PostgreSQL of its own and plays the tutorial docs/tutorials/getting-started-postgres.md.

    Example:

      millstream demo --rows 1000000
      millstream demo --postgres
    """
    module = importlib.import_module("millstream.demo")
    if not postgres:
        with session.progress.working("starting the demo"):
            module.run(session.output, rows=rows, keep=keep, progress=session.progress)
        return
    if rows is not None or keep is not None:
        raise typer.BadParameter("--rows and --keep are for the demonstration without --postgres")
    module.run_postgres(session.output, live=False if session.options.json else None)
