"""`bench`: run the benchmarks."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.session import Session, verb


@verb
def bench(
    session: Session,
    quick: Annotated[bool, typer.Option("--quick", help="Small tables only, a few minutes.")] = False,
    tpch: Annotated[bool, typer.Option("--tpch", help="TPC-H's 22 queries instead, at scale factor 1.")] = False,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="Capture, serving and loading instead, on PostgreSQL servers it starts.")
    ] = False,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="What `millstream run` costs instead, with a PostgreSQL server it starts.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the raw results and the plot to this directory.")] = None,
) -> None:
    """Compare FULL with DIFFERENTIAL refreshes, or measure capture and serving, or the process that runs by itself.

    Example:

      millstream bench --quick --out results
    """
    bench = importlib.import_module("millstream.bench")
    chosen = {"run_daemon": daemon, "run_postgres": postgres, "run_tpch": tpch}
    run = getattr(bench, next((name for name, is_chosen in chosen.items() if is_chosen), "run"))
    with session.progress.working("starting the benchmark"):
        run(session.output, quick=quick, out=out, progress=session.progress)
