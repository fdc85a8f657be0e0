"""Tables that cannot be brought forward for now: they stay where they are, and the others of their database go on.

A quarantined table is compared with its mirror before it is followed again, so neither its buffer nor the WAL has to be
kept for it. A tick for a caller that reads the table tries it again, and raises the error if that fails. Ticks for
other callers try it as well, but spend a small part of their time on it only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from millstream.catalog.attached import Capture
from millstream.catalog.capture_state import Quarantine, RecordedError
from millstream.errors import Code, MillstreamError

_ABOUT_ONE_TABLE = frozenset(
    {
        Code.VALUE_UNSUPPORTED,
        Code.UNSUPPORTED_TYPE,
        Code.PRIVILEGE_MISSING,
        Code.DATABASE_UNFIT,
        Code.SOURCE_NO_CHANGE_FEED,
        Code.SOURCE_CHANGED,
        Code.SOURCE_MISSING,
        Code.UNTRUSTED_CODE,
        Code.LOCK_TIMEOUT,
        Code.CAPTURE_LOST,
    }
)
"""What a table can be quarantined for, where work on that table has raised it; other codes concern more than it."""
_RESTS = 10.0
"""Ticks for other callers do not try a table for so many times as long as it took to find out that it fails."""


def is_about_one_table(error: MillstreamError) -> bool:
    """Whether the other tables of a database can go on."""
    return error.code in _ABOUT_ONE_TABLE


def quarantined(capture: Capture, error: MillstreamError, now: datetime, took: timedelta) -> Capture:
    """The capture with the record of why it is quarantined.

    Args:
        took: how long it took to find out.
    """
    record = Quarantine(RecordedError.of(error), now + _RESTS * took)
    state = replace(capture.state, resync=f"{error.code}: {error.message}", quarantine=record)
    return replace(capture, state=state)


def error_of(capture: Capture) -> MillstreamError:
    """Why it is quarantined."""
    assert capture.state.quarantine is not None
    return capture.state.quarantine.error.error


def rests(capture: Capture, now: datetime) -> bool:
    """Whether ticks for other callers do not try it now."""
    assert capture.state.quarantine is not None
    return capture.is_whole or now < capture.state.quarantine.until
