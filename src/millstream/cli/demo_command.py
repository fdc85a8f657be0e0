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
) -> None:
    """See stream tables at work on an e-commerce lake.

    Builds the lake with a chain of stream tables, changes a few rows, and compares the refresh with the full query.

    Example:

      millstream demo --rows 1000000
    """
    run = importlib.import_module("millstream.demo").run
    with session.progress.working("starting the demo"):
        run(session.output, rows=rows, keep=keep, progress=session.progress)
