"""One call of the command line: the options that every command has, and the lake it opens."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.facade import Facade, connect
from millstream.cli.output import ConsoleOutput, JsonOutput, Output
from millstream.cli.progress import Progress

DEFAULT_LAKE = Path("lake")
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


@dataclass(frozen=True, slots=True)
class Options:
    """The shared options; a path that was not given is None."""

    lake: Path | None = None
    config: Path | None = None
    json: bool = False
    verbose: int = 0
    traceback: bool = False

    def refined(self, later: "Options") -> "Options":
        """These options, overridden by those given after the verb."""
        return Options(
            later.lake or self.lake,
            later.config or self.config,
            later.json or self.json,
            later.verbose + self.verbose,
            later.traceback or self.traceback,
        )

    def output(self, progress: Progress | None = None) -> Output:
        """Where results and errors go; `progress` is paused while text is printed."""
        return JsonOutput() if self.json else ConsoleOutput(progress)


@dataclass(slots=True)
class Invocation:
    """The options known so far; `main` reports errors as they say."""

    options: Options = field(default_factory=Options)

    def refine(self, **options: Any) -> Options:
        """Add further options, and return all of them."""
        self.options = self.options.refined(Options(**options))
        return self.options


class Session:
    """What a command works with: the lake, its output and its progress."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.progress = Progress()
        self.output = options.output(self.progress)

    @contextmanager
    def connect(self) -> Iterator[Facade]:
        """Open the lake for the duration of the block."""
        with self.progress.working("opening the lake"):
            lake = connect(self.options.lake or DEFAULT_LAKE, self.options.config, self.progress)
        with lake as ms:
            yield ms


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
