"""PostgreSQL's errors while a table is served, as coded errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import errors, psycopg
from millstream.postgres.locked_names import MovedError
from millstream.sinks.postgres.privileges import missing_grants
from millstream.sinks.postgres.target import Target

_COPIED = re.compile(r"COPY \w+, line \d+, column c(\d+)")


class MisfitError(Exception):
    """The table is not what the ledger says, so a delta cannot be applied to it; the text is the reason."""


@contextmanager
def coded_errors(connection: Connection, target: Target, bookkeeping: str) -> Iterator[None]:
    """Turn PostgreSQL's errors into coded ones, around whole transactions.

    Args:
        bookkeeping: the schema of the ledger.

    Raises:
        MillstreamError: DATABASE_UNREACHABLE, PRIVILEGE_MISSING, SERVE_FAILED.
    """
    try:
        yield
    except MovedError as e:
        raise MillstreamError(
            Code.SERVE_FAILED, f"{target.name} cannot be served: {e}", hint="the next refresh retries it"
        ) from e
    except errors.InsufficientPrivilege as e:
        raise MillstreamError(
            Code.PRIVILEGE_MISSING,
            f"{target.name} cannot be served: {_first_line(e)}",
            hint=_privilege_hint(e, connection, target, bookkeeping),
        ) from e
    except psycopg.Error as e:
        is_lost = isinstance(e, psycopg.OperationalError) and not e.sqlstate
        if is_lost or isinstance(e, errors.AdminShutdown | errors.CrashShutdown | errors.CannotConnectNow):
            raise MillstreamError(
                Code.DATABASE_UNREACHABLE,
                f"the connection was lost while {target.name} was served: {_first_line(e)}",
                hint="the table is unchanged or complete; the next refresh serves what is missing",
            ) from e
        raise MillstreamError(
            Code.SERVE_FAILED,
            f"{target.name} could not be served{_where(e, target)}: {_first_line(e)}",
            hint=_hint(e),
        ) from e


def _first_line(error: psycopg.Error) -> str:
    primary = error.diag.message_primary
    if primary is None:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{primary} ({error.diag.message_detail})" if error.diag.message_detail else primary


def _where(error: psycopg.Error, target: Target) -> str:
    """The column, if PostgreSQL names it."""
    if error.diag.column_name:
        return f" (column {error.diag.column_name})"
    found = _COPIED.search(error.diag.context or "")
    return f" (column {target.columns[int(found.group(1)) - 1].name})" if found else ""


def _hint(error: psycopg.Error) -> str:
    if isinstance(error, errors.LockNotAvailable):
        return "another session holds a lock on the table; the next refresh retries it"
    if isinstance(error, errors.RaiseException) or "PL/pgSQL" in (error.diag.context or ""):
        return "a trigger on the table refused the change; correct it, or serve with user_triggers = 'off'"
    if isinstance(error, errors.NotNullViolation | errors.InvalidTableDefinition):
        return "the key has NULLs now, or the columns have changed: STOP SERVING, then SERVE TO it again"
    return "remove the cause; the next refresh serves what is missing"


def _privilege_hint(error: psycopg.Error, connection: Connection, target: Target, bookkeeping: str) -> str:
    """The statements that grant what is missing."""
    if "PL/pgSQL" in (error.diag.context or ""):
        return "a trigger on the table needs that privilege; grant it, or serve with user_triggers = 'off'"
    try:
        missing = missing_grants(connection, target, bookkeeping)
    except psycopg.Error:
        missing = []
    if not missing:
        return "ask an administrator of the database to grant it to the role that serves"
    return "ask an administrator of the database to run:\n  " + "\n  ".join(missing)
