"""The `millstream` command: all verbs, and the options before them."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import print_exception
from typing import Annotated

import typer

from millstream import __version__
from millstream.cli.invocation import Invocation, Options
from millstream.cli.output import Problem
from millstream.cli.reporting import INTERRUPTED, reported
from millstream.cli.session import COMMON_PANEL, ConfigOption, JsonOption, TracebackOption, VerboseOption

_OPTIONS_WITH_VALUES = ("--lake", "--config")

_VERBS: tuple[tuple[str, str, str], ...] = (
    ("Define stream tables", "definitions", "create"),
    ("Define stream tables", "definitions", "alter"),
    ("Define stream tables", "definitions", "drop"),
    ("Define stream tables", "inspection", "validate"),
    ("Read PostgreSQL databases", "attaching", "attach"),
    ("Read PostgreSQL databases", "attaching", "detach"),
    ("Read PostgreSQL databases", "attaching", "sources"),
    ("Read PostgreSQL databases", "attaching", "health"),
    ("Read PostgreSQL databases", "attaching", "slots"),
    ("Keep them up to date", "refreshing", "refresh"),
    ("Keep them up to date", "wait_command", "wait"),
    ("Keep them up to date", "refreshing", "cancel"),
    ("Keep them up to date", "running", "run"),
    ("Keep them up to date", "running", "pause"),
    ("Keep them up to date", "running", "resume"),
    ("Keep them up to date", "maintain_command", "maintain"),
    ("Keep them up to date", "monitoring", "status"),
    ("Keep them up to date", "monitoring", "history"),
    ("Keep them up to date", "monitoring", "stats"),
    ("Keep them up to date", "events_command", "events"),
    ("Look inside", "inspection", "explain"),
    ("Look inside", "inspection", "verify"),
    ("Look inside", "inspection", "dag"),
    ("Look inside", "sql_command", "sql"),
    ("Try it", "demo_command", "demo"),
    ("Try it", "bench_command", "bench"),
)
"""The verbs, with the panel of `--help` and the module of each."""


def command_line(only: str | None = None) -> typer.Typer:
    """The command line with all verbs, or only with one of them.

    Importing the modules of all verbs, and turning their signatures into options, takes longer than a refresh.
    """
    app = typer.Typer(
        name="millstream",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(millstream)
    named = [found for found in _VERBS if found[2] == only]
    for panel, module, verb in named or _VERBS:
        function: Callable[..., None] = getattr(importlib.import_module(f"millstream.cli.{module}"), verb)
        app.command(rich_help_panel=panel)(function)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millstream {__version__}")
        raise typer.Exit


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
    return reported(invocation, lambda: _run(given, invocation))


def _run(given: list[str], invocation: Invocation) -> int:
    try:
        command = typer.main.get_command(command_line(_verb_in(given)))
        code = command.main(given, prog_name="millstream", standalone_mode=False, obj=invocation)
    except typer.Abort:
        invocation.options.output().problem(Problem("ABORTED", "aborted; nothing was changed"))
        return 1
    except typer.TyperException as error:
        if invocation.options.traceback:
            print_exception(error)
        problem = _usage_problem(error)
        if problem.message:
            invocation.options.output().problem(problem)
        return error.exit_code
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _verb_in(given: Sequence[str]) -> str | None:
    """The first argument that is no option, unless the options before it make it unimportant."""
    arguments = iter(given)
    for argument in arguments:
        if argument in _OPTIONS_WITH_VALUES:
            next(arguments, None)
        elif not argument.startswith("-"):
            return argument
        elif argument in {"-h", "--help"}:
            return None
    return None


def _usage_problem(error: typer.TyperException) -> Problem:
    context: typer.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "millstream"
    return Problem("USAGE", error.format_message(), f"`{path} --help` shows the usage")
