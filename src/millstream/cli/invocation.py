"""One call of the command line: its options, and the lake it opens. Knows nothing of how options are parsed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.cli.facade import Facade, connect
from millstream.cli.output import ConsoleOutput, JsonOutput, Output
from millstream.cli.progress import Progress

DEFAULT_LAKE = Path("lake")


@dataclass(frozen=True, slots=True)
class Options:
    """The shared options; a path that was not given is None."""

    lake: Path | None = None
    config: Path | None = None
    json: bool = False
    verbose: int = 0
    traceback: bool = False

    def refined(self, later: Options) -> Options:
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

    def __init__(self, options: Options, progress: Progress | None = None) -> None:
        self.options = options
        self.progress = progress or Progress()
        self.output = options.output(self.progress)

    @contextmanager
    def connect(self, *, alone: bool = False) -> Iterator[Facade]:
        """Open the lake for the duration of the block.

        Args:
            alone: whether this process does the work although another one is running.
        """
        with self.progress.working("opening the lake"):
            path, config = self.options.lake or DEFAULT_LAKE, self.options.config
            lake = connect(path, config, self.progress, report=self._report, alone=alone)
        with lake as ms:
            yield ms

    def _report(self, text: str) -> None:
        if self.options.verbose:
            import logging

            logging.getLogger("millstream.cli").info("%s", text)
