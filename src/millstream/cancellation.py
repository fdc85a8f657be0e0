"""Stops a refresh from outside: because somebody asked for it, or because its time is over.

A refresh runs in one thread, through many layers. The thread's `Cancellation` is ambient: work that can be interrupted
registers how (`interrupting`), loops on the driver ask between their steps (`check`), and outside a refresh both do
nothing. An interrupted call may raise any error; the refresh reports why it was stopped instead (`explained`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_here = threading.local()


class Cancellation:
    """Whether one refresh is to stop. Other threads request it; the thread of the refresh notices it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._why: MillstreamError | None = None
        self._interrupts: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()

    def request(self, why: MillstreamError) -> None:
        """Ask the refresh to stop; the first reason counts."""
        with self._guard:
            self._why = self._why or why
        self.interrupt()

    def interrupt(self) -> None:
        """If the refresh was asked to stop, interrupt what it is doing; to be repeated until the refresh has ended.

        The calls run in threads of their own: one may have to wait for a database that does not answer.
        """
        with self._guard:
            interrupts = list(self._interrupts.values()) if self._why is not None else []
        for stop in interrupts:
            threading.Thread(target=stop, name="millstream-interrupt", daemon=True).start()

    @property
    def is_requested(self) -> bool:
        """Whether the refresh was asked to stop."""
        return self._why is not None

    def check(self) -> None:
        """Stop here, if the refresh was asked to.

        Raises:
            MillstreamError: why it was asked to stop.
        """
        if (why := self._why) is not None:
            raise why

    @contextmanager
    def interrupting(self, stop: Callable[[], None]) -> Iterator[None]:
        """Work that `stop` interrupts when it is called from another thread."""
        number = next(self._numbers)
        with self._guard:
            self._interrupts[number] = stop
        try:
            yield
        finally:
            with self._guard:
                del self._interrupts[number]


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[None]:
    """The block is work of this thread that the cancellation can stop."""
    before = current()
    _here.cancellation = cancellation
    try:
        yield
    finally:
        _here.cancellation = before


def current() -> Cancellation | None:
    """What can stop the work of this thread, if anything."""
    found: Cancellation | None = getattr(_here, "cancellation", None)
    return found


def check() -> None:
    """Stop here, if the refresh of this thread was asked to.

    Raises:
        MillstreamError: why it was asked to stop.
    """
    if (cancellation := current()) is not None:
        cancellation.check()


def interrupting(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Work of this thread that `stop` interrupts, when it is called from another one."""
    cancellation = current()
    return nullcontext() if cancellation is None else cancellation.interrupting(stop)


def explained(error: MillstreamError) -> MillstreamError:
    """Why the refresh of this thread was stopped, if it was; otherwise the error itself."""
    try:
        check()
    except MillstreamError as why:
        return why
    return error
