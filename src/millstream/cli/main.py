"""The `millstream` command: all verbs, the options before them, and the one place that reports errors."""

import sys
import traceback as tracebacks
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from millstream import __version__
from millstream.cli import attaching, definitions, inspection, monitoring, refreshing, running
from millstream.cli.bench_command import bench
from millstream.cli.demo_command import demo
from millstream.cli.events_command import events
from millstream.cli.exit_status import exit_status
from millstream.cli.maintain_command import maintain
from millstream.cli.output import Problem
from millstream.cli.session import (
    COMMON_PANEL,
    ConfigOption,
    Invocation,
    JsonOption,
    Options,
    TracebackOption,
    VerboseOption,
)
from millstream.cli.sql_command import sql
from millstream.errors import MillstreamError

_INTERRUPTED = 130

app = typer.Typer(
    name="millstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_VERBS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("Define stream tables", definitions.create),
    ("Define stream tables", definitions.alter),
    ("Define stream tables", definitions.drop),
    ("Define stream tables", inspection.validate),
    ("Read PostgreSQL databases", attaching.attach),
    ("Read PostgreSQL databases", attaching.detach),
    ("Read PostgreSQL databases", attaching.sources),
    ("Read PostgreSQL databases", attaching.health),
    ("Read PostgreSQL databases", attaching.slots),
    ("Keep them up to date", refreshing.refresh),
    ("Keep them up to date", refreshing.cancel),
    ("Keep them up to date", running.run),
    ("Keep them up to date", running.pause),
    ("Keep them up to date", running.resume),
    ("Keep them up to date", maintain),
    ("Keep them up to date", monitoring.status),
    ("Keep them up to date", monitoring.history),
    ("Keep them up to date", monitoring.stats),
    ("Keep them up to date", events),
    ("Look inside", inspection.explain),
    ("Look inside", inspection.verify),
    ("Look inside", inspection.dag),
    ("Look inside", sql),
    ("Try it", demo),
    ("Try it", bench),
)
for _panel, _verb in _VERBS:
    app.command(rich_help_panel=_panel)(_verb)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millstream {__version__}")
        raise typer.Exit


@app.callback()
def millstream(
    context: typer.Context,
    lake: Annotated[
        Path | None,
        typer.Option(
            envvar="MILLSTREAM_LAKE", help="The lake's directory; ./lake if not given.", rich_help_panel=COMMON_PANEL
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
    traceback: TracebackOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact, incrementally maintained SQL queries over Delta and PostgreSQL tables.

    Example:

      millstream sql "CREATE TABLE t (city STRING, amount INT)"
      millstream create per_city "SELECT city, COUNT(*) AS n FROM t GROUP BY city"
      millstream refresh per_city
    """
    invocation = context.ensure_object(Invocation)
    invocation.refine(lake=lake, config=config, json=json, verbose=verbose, traceback=traceback)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, one of `exit_status`, 2 for wrong usage, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A wrong option is reported before the options are parsed, so look for --json here.
    invocation = Invocation(Options(json="--json" in given))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        code = _run(given, invocation)
    ours = [w for w in caught if invocation.options.verbose or w.category.__module__.startswith("millstream.")]
    for text in dict.fromkeys(str(w.message) for w in ours):
        invocation.options.output().warning(text)
    return code


def _run(given: list[str], invocation: Invocation) -> int:
    try:
        command = typer.main.get_command(app)
        code = command.main(given, prog_name="millstream", standalone_mode=False, obj=invocation)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except typer.Abort:
        invocation.options.output().problem(Problem("ABORTED", "aborted; nothing was changed"))
        return 1
    except Exception as e:  # noqa: BLE001 - the outermost level: any error becomes a sentence and an exit code
        return _report(e, invocation.options)
    if code == _INTERRUPTED:
        invocation.options.output().problem(Problem("INTERRUPTED", "interrupted"))
    return code if isinstance(code, int) else 0


def _report(error: Exception, options: Options) -> int:
    if options.traceback:
        tracebacks.print_exception(error)
    code = 1
    if isinstance(error, MillstreamError):
        problem, code = Problem.of(error), exit_status(error.code)
    elif isinstance(error, typer.TyperException):
        code = error.exit_code
        problem = _usage_problem(error)
    else:
        first_line = str(error).strip().split("\n")[0]
        message = f"millstream failed unexpectedly: {type(error).__name__}: {first_line}"
        problem = Problem("INTERNAL", message, "run the command again with --traceback to see where")
    if problem.message:
        options.output().problem(problem)
    return code


def _usage_problem(error: typer.TyperException) -> Problem:
    context: typer.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "millstream"
    return Problem("USAGE", error.format_message(), f"`{path} --help` shows the usage")
