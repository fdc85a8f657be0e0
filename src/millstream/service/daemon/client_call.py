"""The call of a client that the current thread works for: where its progress goes, and whether the client has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from millstream.notices import MillstreamWarning, warned_to


@dataclass(frozen=True)
class ClientCall:
    """One call of a client.

    Args:
        progress, warn: pass a phase or a warning on to the client.
        has_gone: whether the client has closed its connection, so that nobody waits for the result.
        is_ending: whether this process finishes what is running and ends; a call that only waits gives up.
    """

    progress: Callable[[str], None]
    warn: Callable[[str, type[MillstreamWarning]], None]
    has_gone: Callable[[], bool]
    is_ending: Callable[[], bool]


_current: ContextVar[ClientCall | None] = ContextVar("millstream_client_call", default=None)


@contextmanager
def working_for(call: ClientCall) -> Iterator[None]:
    """Work for a client inside the block; threads that inherit the context do so, too."""
    token = _current.set(call)
    try:
        with warned_to(call.warn):
            yield
    finally:
        _current.reset(token)


def current_call() -> ClientCall | None:
    """The call that is worked for; None in work that no client waits for."""
    return _current.get()
