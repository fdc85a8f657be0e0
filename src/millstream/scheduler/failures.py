"""The class of a failed refresh, by its error code: what can help, and whether it counts at once. Pure."""

from __future__ import annotations

from enum import StrEnum

from millstream.errors import NEVER_COUNTED, Code


class FailureClass(StrEnum):
    """What has to change before a refresh can succeed."""

    TRANSIENT = "TRANSIENT"
    """Nothing about the table: a retry may succeed. It counts only after several retries."""
    SOURCE = "SOURCE"
    """A source, or the database it is in. It counts at once."""
    STOPPED = "STOPPED"
    """Nothing: a person or the end of the process stopped the refresh. It never counts."""
    DATA = "DATA"
    """The query, the data, a setting or the installation. It counts at once."""


_TRANSIENT = (
    Code.SESSION_FAILED,
    Code.LAKE_CLOSED,
    Code.LAKE_UNWRITABLE,
    Code.CATALOG_UNAVAILABLE,
    Code.CATALOG_FAILED,
    Code.SUSPENDED,
    Code.NOT_POPULATED,
    Code.REFRESH_OPEN,
    Code.LOCK_TIMEOUT,
    Code.COMMIT_CONFLICT,
    Code.DATABASE_UNREACHABLE,
    Code.SNAPSHOT_LOST,
    Code.DAEMON_LOST,
    Code.WAIT_TIMEOUT,
)
_SOURCE = (
    Code.UNKNOWN_TABLE,
    Code.UNKNOWN_COLUMN,
    Code.SOURCE_MISSING,
    Code.SOURCE_CHANGED,
    Code.SOURCE_NO_CHANGE_FEED,
    Code.SOURCE_DDL_BLOCKED,
    Code.FRONTIER_LOST,
    Code.ADDRESS_INVALID,
    Code.SECRET_IN_ADDRESS,
    Code.DATABASE_UNFIT,
    Code.DATABASE_REPLACED,
    Code.NOT_ATTACHED,
    Code.NAME_AMBIGUOUS,
    Code.PRIVILEGE_MISSING,
    Code.UNTRUSTED_CODE,
    Code.CAPTURE_LOST,
)
_DATA = (
    Code.JAVA_MISSING,
    Code.JARS_UNRESOLVED,
    Code.SESSION_WITHOUT_DELTA,
    Code.LAKE_ON_NETWORK,
    Code.SETTING_INVALID,
    Code.DEPENDENCY_MISSING,
    Code.SYNTAX_ERROR,
    Code.QUERY_INVALID,
    Code.UNSUPPORTED_SQL,
    Code.UNFAITHFUL_SQL,
    Code.VOLATILE_FUNCTION,
    Code.DUPLICATE_COLUMN,
    Code.UNSUPPORTED_TYPE,
    Code.NAME_INVALID,
    Code.NAME_TAKEN,
    Code.NOT_A_STREAM_TABLE,
    Code.CYCLE,
    Code.NOT_MONOTONE,
    Code.DEPENDENTS_EXIST,
    Code.INCOMPATIBLE_CHANGE,
    Code.SCHEDULE_INVALID,
    Code.MODE_INVALID,
    Code.STATUS_INVALID,
    Code.CATALOG_TOO_NEW,
    Code.STREAM_TABLE_READ_ONLY,
    Code.ATTACHED_READ_ONLY,
    Code.FULL_REQUIRED,
    Code.REFRESH_FAILED,
    Code.REFRESH_TIMEOUT,
    Code.RECURSION_LIMIT,
    Code.ORACLE_INVALID,
    Code.NOT_COMPARABLE,
    Code.ORACLE_FAILED,
    Code.VALUE_UNSUPPORTED,
    Code.SERVE_FAILED,
    Code.EVENT_UNKNOWN,
    Code.DAEMON_REFUSED,
    Code.WAIT_INVALID,
)

_CLASSES = {
    **dict.fromkeys(NEVER_COUNTED, FailureClass.STOPPED),
    **dict.fromkeys(_TRANSIENT, FailureClass.TRANSIENT),
    **dict.fromkeys(_SOURCE, FailureClass.SOURCE),
    **dict.fromkeys(_DATA, FailureClass.DATA),
}


def class_of(code: Code) -> FailureClass:
    """The class of a failure with an error code; every code has one.

    >>> class_of(Code.LOCK_TIMEOUT)
    <FailureClass.TRANSIENT: 'TRANSIENT'>
    """
    return _CLASSES[code]
