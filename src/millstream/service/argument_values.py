"""Parses the words that users write for modes, states and oracles."""

from __future__ import annotations

from millstream.errors import Code, MillstreamError
from millstream.results import RefreshMode, Status


def parse_mode(text: str | RefreshMode) -> RefreshMode:
    """A refresh mode from its name, in any case.

    Raises:
        MillstreamError: MODE_INVALID.
    """
    try:
        return RefreshMode(str(text).upper().replace("_", " "))
    except ValueError as e:
        raise MillstreamError(
            Code.MODE_INVALID, f"{text!r} is not a refresh mode", hint="use " + ", ".join(RefreshMode)
        ) from e


ORACLES = ("postgres",)


def parse_oracle(text: str | None) -> str | None:
    """What a stream table can be verified against besides Spark.

    Raises:
        MillstreamError: ORACLE_INVALID.
    """
    if text is not None and text not in ORACLES:
        raise MillstreamError(
            Code.ORACLE_INVALID,
            f"cannot verify against {text!r}",
            hint=f"use {' or '.join(ORACLES)}; by default Spark answers the query",
        )
    return text


def parse_status(text: str | Status) -> Status:
    """A status a user may set.

    Raises:
        MillstreamError: STATUS_INVALID.
    """
    if str(text).upper() not in {Status.ACTIVE, Status.SUSPENDED}:
        raise MillstreamError(Code.STATUS_INVALID, f"{text!r} cannot be set", hint="use ACTIVE or SUSPENDED")
    return Status(str(text).upper())
