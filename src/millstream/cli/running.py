"""`run`, `pause` and `resume`: the process that keeps stream tables fresh by itself."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.cli import formats
from millstream.cli.session import Session, verb

if TYPE_CHECKING:
    from datetime import datetime
    from types import FrameType

    from millstream.results import StreamTableStatus
    from millstream.service.daemon.loop import Activity

_log = logging.getLogger("millstream.run")


@verb
def run(session: Session) -> None:
    """Keep all stream tables fresh by their schedules, until interrupted.

    Only one process refreshes a lake by itself; a second one stands by, with Spark started, and takes over when the
    first one ends. SIGTERM and Ctrl-C finish the refreshes that are running; SIGHUP reads the settings again. On a
    terminal it shows what is running, waiting and late; otherwise it writes log lines to stderr.

    Example:

      millstream run
      millstream --lake /srv/lake run --verbose
    """
    stop, reload = threading.Event(), threading.Event()
    with session.connect(alone=True) as ms, _signals(stop, reload), _screen(session) as screen:
        ms.run(
            stop,
            reload=reload,
            on_activity=lambda activity: screen.show(activity, ms.status),
            on_standby=lambda: screen.say("another process refreshes this lake; standing by"),
        )
        screen.say("stopped; nothing is running")


@verb
def pause(session: Session) -> None:
    """Pause the automatic refreshes of all stream tables; explicit ones still work.

    Example:

      millstream pause
    """
    with session.connect() as ms:
        ms.pause()
    session.output.done("automatic refreshes are paused; `millstream resume` resumes them", {"is_paused": True})


@verb
def resume(session: Session) -> None:
    """Resume automatic refreshes after `pause`.

    Example:

      millstream resume
    """
    with session.connect() as ms:
        ms.resume()
    session.output.done("automatic refreshes are resumed", {"is_paused": False})


@contextmanager
def _signals(stop: threading.Event, reload: threading.Event) -> Iterator[None]:
    """Finish on the first SIGTERM or SIGINT; a second SIGINT interrupts at once. SIGHUP reads the settings again."""

    def finish(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    handlers = {signal.SIGTERM: finish, signal.SIGINT: finish, signal.SIGHUP: lambda _number, _frame: reload.set()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _LogLines:
    """What happens, as log lines: for a service's log."""

    def __init__(self) -> None:
        self._seen: dict[str, datetime] = {}

    def say(self, text: str) -> None:
        _log.info("%s", text)

    def show(self, activity: Activity, _tables: Callable[[], object]) -> None:
        for plan in activity.decision.passes:
            _log.info("started a pass over %s", ", ".join(plan.tables))
        for missed in activity.decision.missed:
            if self._seen.get(missed.table) != missed.deadline:
                self._seen[missed.table] = missed.deadline
                _log.warning("%s will be late: due by %s", missed.table, missed.deadline.isoformat())


class _LiveTable:
    """What happens, as a table that is drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        self._live.console.print(text)

    def show(self, activity: Activity, tables: Callable[[], Sequence[StreamTableStatus]]) -> None:
        self._live.update(_drawn(activity, tables()), refresh=True)


@contextmanager
def _screen(session: Session) -> Iterator[_LogLines | _LiveTable]:
    if not sys.stderr.isatty() or session.options.json:
        logger, handler = logging.getLogger("millstream"), logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        if not session.options.verbose:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        try:
            yield _LogLines()
        finally:
            logger.removeHandler(handler)
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield _LiveTable(live)


def _drawn(activity: Activity, tables: Sequence[StreamTableStatus]) -> Group:
    late = {missed.table for missed in activity.decision.missed}
    waiting = activity.decision.waiting
    table = Table(box=None, pad_edge=False)
    for title in ("stream table", "status", "schedule", "age", "now"):
        table.add_column(title)
    for row in tables:
        if row.name in activity.running:
            now = Text("refreshing", "bold green")
        elif row.name in waiting:
            now = Text(f"waits for {waiting[row.name].table}", "yellow")
        elif row.name in late:
            now = Text("late", "red")
        else:
            now = Text("")
        age = "" if row.staleness is None else formats.duration(row.staleness)
        table.add_row(row.name, str(row.status), row.schedule, age, now)
    state = "paused" if activity.is_paused else f"{len(activity.running)} refreshing"
    head = Text(f"{activity.now:%H:%M:%S} UTC   {len(tables)} stream tables   {state}   Ctrl-C finishes", "dim")
    return Group(head, table)
