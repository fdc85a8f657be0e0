"""The options that every command has, as Typer parses them, and the decorator that gives them to a command."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.invocation import Invocation, Session

__all__ = [
    "COMMON_PANEL",
    "ConfigOption",
    "JsonOption",
    "LakeOption",
    "Session",
    "TracebackOption",
    "VerboseOption",
    "verb",
]

COMMON_PANEL = "Options of every command"

LakeOption = Annotated[
    Path | None,
    typer.Option(
        help="The lake's directory; if not given, MILLSTREAM_LAKE, else ./lake.", rich_help_panel=COMMON_PANEL
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option(help="A millstream.toml with settings.", rich_help_panel=COMMON_PANEL)
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=COMMON_PANEL)]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Log each step and its duration to stderr; -vv logs more.",
        rich_help_panel=COMMON_PANEL,
    ),
]
TracebackOption = Annotated[
    bool, typer.Option("--traceback", help="Show where in the code an error was raised.", rich_help_panel=COMMON_PANEL)
]


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command, with the shared options in place of its first parameter, a `Session`."""
    shared = inspect.signature(_shared_options).parameters
    own = list(inspect.signature(function).parameters.values())[1:]

    @functools.wraps(function)
    def command(**arguments: Any) -> None:
        context: typer.Context = arguments.pop("context")
        invocation = context.ensure_object(Invocation)
        options = invocation.refine(**{name: arguments.pop(name) for name in shared if name != "context"})
        with _logged_on_stderr(options.verbose) if options.verbose else nullcontext():
            function(Session(options), **arguments)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*own, *shared.values()]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


@contextmanager
def _logged_on_stderr(verbose: int) -> Iterator[None]:
    """Show what millstream logs, for the duration of the block."""
    import logging

    logger, handler = logging.getLogger("millstream"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _shared_options(
    context: typer.Context,
    lake: LakeOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
    traceback: TracebackOption = False,
) -> None:
    """Never called: its parameters are the options after each verb."""
