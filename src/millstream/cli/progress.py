"""Progress, on a terminal only: a spinner on stderr with the phase, the share that is done, and the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from millstream.results import Portion

_BAR_WIDTH = 24


class Progress:
    """The hook that the service calls with each phase; visible while the program is inside `working`."""

    def __init__(self, *, enabled: bool | None = None, patience_seconds: float = 0.0) -> None:
        self.enabled = sys.stderr.isatty() if enabled is None else enabled
        self._patience = patience_seconds
        self._bar: Any = None
        self._task: Any = None
        self._late: tuple[float, ExitStack] | None = None

    def __call__(self, phase: str) -> None:
        """Show the phase that begins."""
        if self._late is not None and self._bar is None and time.monotonic() > self._late[0]:
            self._late[1].enter_context(self._shown(phase))
        if self._bar is not None:
            share = phase.share if isinstance(phase, Portion) else None
            self._bar.update(self._task, description=phase, share=share)

    @contextmanager
    def working(self, phase: str) -> Iterator[None]:
        """Show the spinner until the block ends; code that prints meanwhile does so in `paused`.

        With patience, it is shown only from the first phase on that begins later than that.
        """
        if not self.enabled or self._bar is not None or self._late is not None:
            self(phase)
            yield
        elif self._patience:
            with ExitStack() as stack:
                self._late = time.monotonic() + self._patience, stack
                stack.callback(setattr, self, "_late", None)
                yield
        else:
            with self._shown(phase):
                yield

    @contextmanager
    def _shown(self, phase: str) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        class ShareColumn(ProgressColumn):
            """A bar, if the total is known."""

            def render(self, task: Task) -> Table | str:
                share = task.fields["share"]
                if share is None:
                    return ""
                grid = Table.grid(padding=(0, 1))
                grid.add_row(ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH), f"{share:.0%}")
                return grid

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), ShareColumn(), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._task = bar, bar.add_task(phase, total=None, share=None)
            try:
                yield
            finally:
                self._bar = self._task = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the spinner off the terminal while the block prints."""
        bar = self._bar
        if bar is None:
            yield
            return
        bar.stop()
        try:
            yield
        finally:
            bar.start()
