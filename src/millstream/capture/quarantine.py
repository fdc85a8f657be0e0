"""Quarantine: tables that cannot be brought forward keep their mirrors as they are, and the other tables continue.

A quarantined table is compared with its mirror before it is followed again, so neither its buffer nor the WAL has to be
kept for it. A tick for a caller that reads the table retries it, and raises the error if that fails. Ticks for other
callers retry it too, but spend only a small part of their time on it.
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
"""The errors that quarantine a table if work on it raises them; other codes concern more than one table."""
_PASSING = frozenset({Code.LOCK_TIMEOUT})
"""Those of them that pass without anything being written: a lock is released."""
_RESTS = 10.0
"""Ticks for other callers skip a quarantined table for this many times as long as the failed attempt took."""


def is_about_one_table(error: MillstreamError) -> bool:
    """Whether an error concerns one table only, so that the other tables of its database can continue."""
    return error.code in _ABOUT_ONE_TABLE


def quarantined(capture: Capture, error: MillstreamError, now: datetime, took: timedelta) -> Capture:
    """The capture with the record of why it is quarantined.

    Args:
        took: how long the failed attempt took.
    """
    record = Quarantine(RecordedError.of(error), now + _RESTS * took)
    state = replace(capture.state, resync=f"{error.code}: {error.message}", quarantine=record)
    return replace(capture, state=state)


def error_of(capture: Capture) -> MillstreamError:
    """The error that a capture is quarantined for."""
    assert capture.state.quarantine is not None
    return capture.state.quarantine.error.error


def rests(capture: Capture, now: datetime) -> bool:
    """Whether ticks for other callers skip a quarantined capture now."""
    assert capture.state.quarantine is not None
    return capture.is_whole or now < capture.state.quarantine.until


def may_have_passed(capture: Capture, now: datetime) -> bool:
    """Whether a quarantined capture is worth a retry although nothing was written."""
    found = capture.state.quarantine
    return found is not None and found.error.error.code in _PASSING and not rests(capture, now)
