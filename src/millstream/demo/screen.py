"""Two psql sessions side by side: what the application changes, and the served table; live on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import RenderableType

    from millstream.cli.output import Output
    from millstream.demo.watch import Rows

_READING_SECONDS = 1.5
_NARROW = 100


class Screen:
    """The plain form, for a pipe or a file: one scene after the other."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def working(self, phase: str) -> None:
        """What millstream is doing."""

    def typed(self, title: str, statement: str, rows: Rows | None = None) -> None:
        """What the application does, and what its table then holds."""
        self._output.line()
        self._output.line(f"-- {title}")
        self._output.line(f"hr=> {' '.join(statement.split())};")

    def served(self, rows: Rows) -> None:
        """What the served table holds, as soon as it changes."""

    def ended(self, rows: Rows, query: str, remark: str) -> None:
        """The end of a scene."""
        self._output.line(remark)
        self._output.line(f"hr=> {query};")
        self._output.line(str(rows))


class LiveScreen(Screen):
    """The form for a terminal, repainted whenever one side changes."""

    def __init__(self, output: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(output)
        self._lock = threading.Lock()
        self._left: tuple[str, str, str] = ("", "", "")
        self._right = ""
        self._known: set[str] = set()
        self._phase = ""
        self._remark = ""
        self._console = Console(emoji=False)
        self._live = Live(console=self._console, refresh_per_second=12, get_renderable=self._painted)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def working(self, phase: str) -> None:
        """What millstream is doing."""
        with self._lock:
            self._phase = phase

    def typed(self, title: str, statement: str, rows: Rows | None = None) -> None:
        """What the application does, and what its table then holds."""
        with self._lock:
            self._left = (title, f"hr=> {' '.join(statement.split())};", str(rows or ""))
            self._known = set(self._right.splitlines())
            self._remark = ""

    def served(self, rows: Rows) -> None:
        """What the served table holds, as soon as it changes."""
        with self._lock:
            self._right = str(rows)

    def ended(self, rows: Rows, query: str, remark: str) -> None:
        """The end of a scene, with time to read it."""
        with self._lock:
            self._right, self._phase, self._remark = str(rows), "", remark
        time.sleep(_READING_SECONDS)

    def _painted(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            title, statement, rows = self._left
            left = Panel(Group(Text(statement, "bold"), Text(rows)), title=Text(title or "the application's tables"))
            lines = [Text(t, "" if t in self._known else "green") for t in self._right.splitlines()]
            right = Panel(Text("\n").join(lines), title=Text("the served table team_costs"))
            below: Any = Text(self._remark, "bold green") if self._remark else Spinner("dots", Text(self._phase))
        if self._console.width < _NARROW:
            return Group(left, right, below)
        both = Table.grid(expand=True)
        both.add_column(ratio=1)
        both.add_column(ratio=1)
        both.add_row(left, right)
        return Group(both, below)


def screen_for(output: Output, *, live: bool | None = None) -> Screen:
    """The screen that suits the output: live on a terminal, plain otherwise.

    Args:
        live: whether it is repainted; by default on a terminal.
    """
    return LiveScreen(output) if (sys.stdout.isatty() if live is None else live) else Screen(output)
