"""`demo`: run the demonstrations."""

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
        bool, typer.Option("--postgres", help="Demonstrate capture from PostgreSQL and serving into it instead.")
    ] = False,
) -> None:
    """Demonstrate stream tables on an e-commerce lake.

    Builds the lake with a chain of stream tables, changes a few rows, and compares the refresh with the full query.
    With --postgres, starts a PostgreSQL server and plays the tutorial docs/tutorials/getting-started-postgres.md on it:
    the stream tables keep themselves fresh, as under `millstream run`, and are served back into the database.

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
        raise typer.BadParameter("--rows and --keep cannot be used with --postgres")
    module.run_postgres(session.output, live=False if session.options.json else None)
