"""The exit status of a command that failed, by its error: a service manager decides by it what to do. Pure."""

from __future__ import annotations

from millstream.errors import Code

ERROR, RETRY, CONFIGURATION = 1, 75, 78
"""An error; one that a new process may not have (EX_TEMPFAIL); one that only a person can correct (EX_CONFIG)."""

_RETRY = (Code.JVM_LOST, Code.OUT_OF_MEMORY, Code.LEADERSHIP_LOST)
_CONFIGURATION = (Code.LAKE_ON_NETWORK,)


def exit_status(code: Code) -> int:
    """The exit status for an error.

    >>> exit_status(Code.JVM_LOST), exit_status(Code.REFRESH_FAILED)
    (75, 1)
    """
    if code in _RETRY:
        return RETRY
    return CONFIGURATION if code in _CONFIGURATION else ERROR
