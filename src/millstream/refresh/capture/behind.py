"""Tables that cannot be brought forward for now: they are left where they are, and the others of their database go on.

Such a table is to be compared with its mirror, whatever was captured of it meanwhile: so neither its buffer nor the WAL
has to be kept for it. It is tried again whenever somebody reads it, who is told what is wrong if it fails again; and by
other ticks as well, but they shall spend a small part of their time on it only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from millstream.catalog.attached import BEHIND, RESYNC, Capture
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.record import is_whole

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
"""What a table can be left for, where it comes of something done to that table; others are about more than it."""
_RESTS = 10.0
"""Ticks for others leave it alone for so many times as long as it took to find out that it cannot be had."""


def is_about_one_table(error: MillstreamError) -> bool:
    """Whether the other tables of a database can go on."""
    return error.code in _ABOUT_ONE_TABLE


def left_behind(capture: Capture, error: MillstreamError, now: datetime, took: timedelta) -> Capture:
    """The capture with the record of why it was left.

    Args:
        took: how long it took to find out.
    """
    until = (now + _RESTS * took).isoformat()
    record = {**error_record(error), "until": until}
    return replace(capture, details={**capture.details, RESYNC: f"{error.code}: {error.message}", BEHIND: record})


def error_of(capture: Capture) -> MillstreamError:
    """Why it was left."""
    return recorded_error(capture.details[BEHIND])


def error_record(error: MillstreamError) -> dict[str, str | None]:
    """An error as it is recorded."""
    return {"code": str(error.code), "message": error.message, "hint": error.hint}


def recorded_error(record: Mapping[str, str | None]) -> MillstreamError:
    """The error of a record."""
    return MillstreamError(Code[str(record["code"])], str(record["message"]), hint=record["hint"])


def rests(capture: Capture, now: datetime) -> bool:
    """Whether ticks for others leave it where it is without trying."""
    return is_whole(capture) or now < datetime.fromisoformat(capture.details[BEHIND]["until"])
