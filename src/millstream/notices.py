"""Warning classes: something works, but not as the user may expect. The command line prints them as sentences."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class MillstreamWarning(UserWarning):
    """The base class of all warnings."""


class ChangeFeedWarning(MillstreamWarning):
    """A source table was altered so that it records its changes."""


class CaptureWarning(MillstreamWarning):
    """Capture is limited: some writes are not captured, or the WAL cannot be read; the text says what to do."""


class FullRefreshWarning(MillstreamWarning):
    """A stream table can only be recomputed; the text says why."""


class ServingWarning(MillstreamWarning):
    """A served table has triggers that its users should know about."""


class LeftoverWarning(MillstreamWarning):
    """Objects remain in a detached database because the role may not drop them; the text has the statements to run."""


class NoticeWarning(MillstreamWarning):
    """Something in a query has no effect on a stream table."""


_listener: ContextVar[Callable[[str, type[MillstreamWarning]], None] | None] = ContextVar(
    "millstream_warnings", default=None
)


@contextmanager
def warned_to(listener: Callable[[str, type[MillstreamWarning]], None]) -> Iterator[None]:
    """Pass the warnings of the block to a function, e.g. for the client that waits for the result."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def warn(sentence: str, category: type[MillstreamWarning]) -> None:
    """Warn, pointing at the line outside millstream that made the call."""
    if (listener := _listener.get()) is not None:
        listener(sentence, category)
        return
    depth, frame = 2, sys._getframe(1)
    ours = ("millstream.", "contextlib")  # contextlib calls our code at the start and end of a `with` block
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(ours):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(sentence, category, stacklevel=depth)
