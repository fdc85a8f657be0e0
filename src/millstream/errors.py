"""Every error a user can get: a stable code, what happened, and what to do about it.

Callers match on `error.code`, never on the English text. The error page of the docs is generated from `Code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The stable names of all errors; `explanation` is the one-line text of the error page."""

    explanation: str

    def __new__(cls, value: str, explanation: str) -> Code:
        member = str.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        return member

    # The machine and the session
    JAVA_MISSING = ("JAVA_MISSING", "No Java runtime of version 17 or newer was found.")
    JARS_UNRESOLVED = ("JARS_UNRESOLVED", "Delta's jars could not be found or downloaded.")
    SESSION_FAILED = ("SESSION_FAILED", "Spark could not be started or reached.")
    SESSION_WITHOUT_DELTA = ("SESSION_WITHOUT_DELTA", "The Spark session is not configured for Delta tables.")
    JVM_LOST = ("JVM_LOST", "Spark's Java process has ended, so this process cannot go on.")
    OUT_OF_MEMORY = ("OUT_OF_MEMORY", "The Python process ran out of memory.")
    SETTING_INVALID = ("SETTING_INVALID", "A setting is unknown or has a value outside its range.")
    LAKE_CLOSED = ("LAKE_CLOSED", "The lake was closed before this call.")
    LAKE_UNWRITABLE = ("LAKE_UNWRITABLE", "The lake's directory cannot be written.")
    LAKE_ON_NETWORK = ("LAKE_ON_NETWORK", "The lake is on a network file system, where its locks are not reliable.")
    DEPENDENCY_MISSING = ("DEPENDENCY_MISSING", "An optional Python package is not installed.")

    # SQL
    SYNTAX_ERROR = ("SYNTAX_ERROR", "The statement or the query could not be parsed.")
    UNKNOWN_TABLE = ("UNKNOWN_TABLE", "A table, view or stream table of that name does not exist.")
    UNKNOWN_COLUMN = ("UNKNOWN_COLUMN", "A column of that name does not exist in what the query reads.")
    QUERY_INVALID = ("QUERY_INVALID", "Spark refuses the query (types, functions, grouping, ...).")
    UNSUPPORTED_SQL = ("UNSUPPORTED_SQL", "The construct cannot be maintained incrementally.")
    UNFAITHFUL_SQL = (
        "UNFAITHFUL_SQL",
        "millstream cannot be sure that its rewritten query means the same, so the query is only recomputed.",
    )
    VOLATILE_FUNCTION = ("VOLATILE_FUNCTION", "The query calls a function whose result changes between calls.")
    DUPLICATE_COLUMN = ("DUPLICATE_COLUMN", "Two output columns have the same name.")
    UNSUPPORTED_TYPE = ("UNSUPPORTED_TYPE", "A column's type cannot be stored or compared.")

    # The catalog
    NAME_INVALID = ("NAME_INVALID", "The name is not valid for this kind of object.")
    NAME_TAKEN = ("NAME_TAKEN", "A table, view, stream table, schema or database of that name already exists.")
    NOT_A_STREAM_TABLE = ("NOT_A_STREAM_TABLE", "There is no stream table of that name.")
    CYCLE = ("CYCLE", "The query would make the stream table read itself, and allow_circular is off.")
    NOT_MONOTONE = (
        "NOT_MONOTONE",
        "A stream table of a cycle must be a set that only grows with what it reads.",
    )
    DEPENDENTS_EXIST = (
        "DEPENDENTS_EXIST",
        "Stream tables read the object or are served into it, or views and keys depend on a served table.",
    )
    INCOMPATIBLE_CHANGE = ("INCOMPATIBLE_CHANGE", "The new query has other columns, and dependents use the old ones.")
    SCHEDULE_INVALID = ("SCHEDULE_INVALID", "The schedule is not a duration, a cron expression or CALCULATED.")
    MODE_INVALID = ("MODE_INVALID", "The refresh mode is not one of AUTO, DIFFERENTIAL, DIFFERENTIAL STRICT, FULL.")
    STATUS_INVALID = ("STATUS_INVALID", "The status is not one of ACTIVE, SUSPENDED.")
    CATALOG_TOO_NEW = ("CATALOG_TOO_NEW", "The catalog was written by a newer millstream.")
    CATALOG_UNAVAILABLE = ("CATALOG_UNAVAILABLE", "The catalog's database cannot be reached.")
    LEADERSHIP_LOST = ("LEADERSHIP_LOST", "Another process has become the leader of the lake.")
    DAEMON_LOST = ("DAEMON_LOST", "The running process of the lake ended, or failed, before it answered a call.")
    DAEMON_REFUSED = ("DAEMON_REFUSED", "The running process of the lake does not accept this user or this call.")
    EVENT_UNKNOWN = ("EVENT_UNKNOWN", "There is no event of that name.")
    CATALOG_FAILED = ("CATALOG_FAILED", "The catalog's database refused a statement or is damaged.")

    # Writing where only refreshes may write
    STREAM_TABLE_READ_ONLY = ("STREAM_TABLE_READ_ONLY", "Only refreshes change stream tables.")
    ATTACHED_READ_ONLY = ("ATTACHED_READ_ONLY", "Tables of an attached database can only be changed in that database.")
    SOURCE_DDL_BLOCKED = ("SOURCE_DDL_BLOCKED", "The source's columns are in use and block_source_ddl is set.")

    # Sources and refreshes
    SOURCE_MISSING = ("SOURCE_MISSING", "A source table was dropped.")
    SOURCE_CHANGED = ("SOURCE_CHANGED", "A source's columns changed so that the query no longer fits.")
    SOURCE_NO_CHANGE_FEED = ("SOURCE_NO_CHANGE_FEED", "A source records no changes and may not be altered.")
    SUSPENDED = ("SUSPENDED", "The stream table, or one it reads, is suspended.")
    FULL_REQUIRED = ("FULL_REQUIRED", "The mode is DIFFERENTIAL STRICT, and no delta is possible.")
    NOT_POPULATED = ("NOT_POPULATED", "The stream table has never been refreshed.")
    REFRESH_FAILED = ("REFRESH_FAILED", "The refresh failed; the old contents are still readable.")
    REFRESH_TIMEOUT = ("REFRESH_TIMEOUT", "The refresh took longer than refresh_timeout_seconds and was stopped.")
    REFRESH_CANCELLED = ("REFRESH_CANCELLED", "Somebody cancelled the refresh.")
    RECURSION_LIMIT = (
        "RECURSION_LIMIT",
        "A recursion exceeded max_recursion rounds or max_recursion_rows, often because its data have a cycle.",
    )
    WAIT_TIMEOUT = ("WAIT_TIMEOUT", "What was waited for was not in the stream table within the time limit.")
    WAIT_INVALID = ("WAIT_INVALID", "The point to wait for is not one that the stream table can reach.")
    REFRESH_OPEN = ("REFRESH_OPEN", "A refresh of the stream table is running, or was interrupted and not recovered.")
    LOCK_TIMEOUT = (
        "LOCK_TIMEOUT",
        "Another refresh or transaction held the table for longer than the time limit.",
    )
    COMMIT_CONFLICT = ("COMMIT_CONFLICT", "Another writer changed the stream table's storage at the same time.")
    FRONTIER_LOST = ("FRONTIER_LOST", "A source no longer has the version the stream table was computed from.")

    # Verifying
    ORACLE_INVALID = ("ORACLE_INVALID", "The system to verify a stream table against is unknown.")
    NOT_COMPARABLE = ("NOT_COMPARABLE", "The stream table cannot be compared with PostgreSQL's answer.")
    ORACLE_FAILED = ("ORACLE_FAILED", "PostgreSQL could not answer the query of the stream table to verify.")

    # PostgreSQL
    ADDRESS_INVALID = ("ADDRESS_INVALID", "The address of a database cannot be understood or is not set.")
    SECRET_IN_ADDRESS = ("SECRET_IN_ADDRESS", "The address of a database holds a password.")
    DATABASE_UNREACHABLE = ("DATABASE_UNREACHABLE", "A database cannot be reached, or the connection was lost.")
    DATABASE_UNFIT = ("DATABASE_UNFIT", "The server is a standby or too old, or lacks what capture needs.")
    DATABASE_REPLACED = ("DATABASE_REPLACED", "Another database answers at the address: restored or failed over.")
    NOT_ATTACHED = ("NOT_ATTACHED", "There is no attached database of that name.")
    NAME_AMBIGUOUS = ("NAME_AMBIGUOUS", "A name matches several tables of a database.")
    PRIVILEGE_MISSING = (
        "PRIVILEGE_MISSING",
        "The database's role lacks a right that capture or serving needs, or a view's owner may not read its tables.",
    )
    VALUE_UNSUPPORTED = (
        "VALUE_UNSUPPORTED",
        "A value of a source has no exact counterpart in its column's type on Spark.",
    )
    UNTRUSTED_CODE = (
        "UNTRUSTED_CODE",
        "Reading a source would run another role's function with the rights of the reading role.",
    )
    SNAPSHOT_LOST = (
        "SNAPSHOT_LOST",
        "The snapshot under which tables were being read was lost; the read starts over.",
    )
    CAPTURE_LOST = ("CAPTURE_LOST", "The captured changes of a database have a gap, so its tables must be read again.")
    SERVE_FAILED = ("SERVE_FAILED", "The result could not be written into the served table.")


NEVER_COUNTED = frozenset({Code.REFRESH_CANCELLED, Code.LEADERSHIP_LOST, Code.JVM_LOST, Code.OUT_OF_MEMORY})
"""Errors that say nothing about a stream table: a person or the end of the process has stopped its refresh."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a SQL text: line and column from 1, and the number of characters to underline."""

    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class MillstreamError(Exception):
    """The only exception millstream raises on purpose.

    Args:
        code: the stable name to match on.
        message: what happened, naming the object or construct.
        hint: what to do about it.
        position: where in the SQL text, if it was about SQL.
        sql: the text `position` points into.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        hint: str | None = None,
        position: Position | None = None,
        sql: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.position = position
        self.sql = sql

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        if self.position is not None:
            lines[0] += f" ({self.position})"
            lines += self._underlined()
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        return "\n".join(lines)

    def _underlined(self) -> list[str]:
        if self.position is None or self.sql is None:
            return []
        source_lines = self.sql.splitlines()
        if not 1 <= self.position.line <= len(source_lines):
            return []
        line = source_lines[self.position.line - 1]
        indent = "".join("\t" if c == "\t" else " " for c in line[: self.position.column - 1])
        return [f"  {line}", f"  {indent}{'^' * max(1, self.position.length)}"]

    def as_dict(self) -> dict[str, object]:
        """The error as data, for `--json`."""
        position = self.position
        return {
            "code": str(self.code),
            "message": self.message,
            "hint": self.hint,
            "position": {"line": position.line, "column": position.column} if position else None,
        }
