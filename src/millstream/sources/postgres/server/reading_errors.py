"""Coded errors for PostgreSQL's errors while tables are locked or read."""

from __future__ import annotations

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import unreachable
from millstream.postgres.driver import psycopg


def reading_error(address: Address, error: psycopg.Error, tables: str, kind: str = "r") -> MillstreamError:
    """A coded error for tables that cannot be read."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return lock_error(tables)
    # for a materialized view this error means that it was never refreshed
    if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState) and kind != "m":
        return moved_error(f"{tables} has become a view or a foreign table: {first_line(error)}")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MillstreamError(
            Code.PRIVILEGE_MISSING,
            f"{tables} cannot be read: {first_line(error)}",
            hint="GRANT SELECT on it; where row security is on, the role must be its owner or have BYPASSRLS",
        )
    if isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)):
        return MillstreamError(Code.SOURCE_CHANGED, f"{tables} cannot be read: {first_line(error)}")
    if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
        return unreachable(address, error)
    return MillstreamError(Code.DATABASE_UNFIT, f"{tables} cannot be read: {first_line(error)}")


def lock_error(tables: str) -> MillstreamError:
    """A coded error for tables that cannot be locked."""
    return MillstreamError(
        Code.LOCK_TIMEOUT,
        f"another session is altering or truncating {tables}, or waiting to do so",
        hint="try again when it is done",
    )


def moved_error(why: str) -> MillstreamError:
    """A coded error for a name that now means another relation than the one found before."""
    return MillstreamError(
        Code.SOURCE_CHANGED,
        why,
        hint="refresh again; if that does not help, redefine the stream tables that read it",
    )


def first_line(error: psycopg.Error) -> str:
    """The first line of an error's text, without its position and context."""
    return next(iter(str(error).splitlines()), type(error).__name__)
