"""Progress, on a terminal only: a spinner on stderr with the phase, the share that is done, and the time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.results import Portion

_BAR_WIDTH = 24


class Progress:
    """The hook that the service calls with each phase; visible while the program is inside `working`."""

    def __init__(self, *, enabled: bool | None = None) -> None:
        self.enabled = sys.stderr.isatty() if enabled is None else enabled
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, phase: str) -> None:
        """Show the phase that begins."""
        if self._bar is not None:
            share = phase.share if isinstance(phase, Portion) else None
            self._bar.update(self._task, description=phase, share=share)

    @contextmanager
    def working(self, phase: str) -> Iterator[None]:
        """Show the spinner until the block ends; code that prints meanwhile does so in `paused`."""
        if not self.enabled or self._bar is not None:
            self(phase)
            yield
            return
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
