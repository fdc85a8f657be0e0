"""Recognises statements: millstream's own, and plain Spark statements with the objects they write.

It works on the tokens of sqlglot's Spark tokenizer and never prints SQL: a query is the exact slice of the text after
AS, and a plain statement goes to Spark as it was written. Positions count from the start of the given text.
"""

from __future__ import annotations

from millstream.errors import Code, MillstreamError
from millstream.sql.statements.model import (
    AlterStreamTable,
    AttachDatabase,
    CancelRefresh,
    CreateStreamTable,
    DescribeStreamTable,
    DetachDatabase,
    DropStreamTable,
    Effect,
    ExplainStreamTable,
    Other,
    OwnStatement,
    RefreshStreamTable,
    ServeClause,
    ShowStreamTables,
    Statement,
    StatementText,
    Target,
    WaitForStreamTable,
    WaitPoint,
)
from millstream.sql.statements.own import own_statement
from millstream.sql.statements.plain import classify
from millstream.sql.statements.scanner import Scanner, pieces_of, position_at, schemas_in, stripped

__all__ = [
    "AlterStreamTable",
    "AttachDatabase",
    "CancelRefresh",
    "CreateStreamTable",
    "DescribeStreamTable",
    "DetachDatabase",
    "DropStreamTable",
    "Effect",
    "ExplainStreamTable",
    "Other",
    "OwnStatement",
    "RefreshStreamTable",
    "ServeClause",
    "ShowStreamTables",
    "Statement",
    "StatementText",
    "Target",
    "WaitForStreamTable",
    "WaitPoint",
    "changes_session",
    "parse_statement",
    "position_at",
    "relocated",
    "schemas_in",
    "split_statements",
]


def parse_statement(text: str) -> Statement:
    """Recognise the one statement in `text`; a closing semicolon is allowed.

    >>> parse_statement("REFRESH STREAM TABLE totals FULL")
    RefreshStreamTable(name=TableName(schema='default', name='totals'), full=True)

    Raises:
        MillstreamError: SYNTAX_ERROR, NAME_INVALID, MODE_INVALID, STATUS_INVALID or UNSUPPORTED_SQL, with a position.
    """
    pieces = [p for p in pieces_of(text) if not p.is_empty]
    if not pieces:
        raise MillstreamError(Code.SYNTAX_ERROR, "there is no statement", hint="give one, such as SHOW STREAM TABLES")
    scanner = Scanner(text, pieces[0])
    own = own_statement(scanner)
    if len(pieces) > 1:
        hint = "give the statements one by one, or all of them to `millstream sql`"
        message = "expected one statement, but another begins here"
        if isinstance(own, AttachDatabase):  # the text may hold a password
            raise MillstreamError(Code.SYNTAX_ERROR, message, hint=hint)
        second = Scanner(text, pieces[1])
        raise second.error(Code.SYNTAX_ERROR, message, hint, second.here())
    return own or classify(scanner)


def split_statements(text: str) -> tuple[StatementText, ...]:
    """Split a text at its top-level semicolons; a `BEGIN … END` script is one statement, empty ones are omitted.

    >>> [s.text for s in split_statements("SELECT ';' ; /* two; */ SELECT 2;")]
    ["SELECT ';'", '/* two; */ SELECT 2']
    """
    return tuple(stripped(text, p.start, p.stop) for p in pieces_of(text) if not p.is_empty)


def changes_session(text: str) -> bool:
    """Whether a statement may leave something in the session that runs it: settings, variables, temporary objects.

    >>> [changes_session(s) for s in ("SELECT 1", "SET x = 1", "CREATE TEMPORARY VIEW v AS SELECT 1")]
    [False, True, True]
    """
    try:
        statement = parse_statement(text)
    except MillstreamError:
        return False
    return isinstance(statement, Other) and (
        statement.effect is Effect.SESSION or statement.temporary or statement.kind in {"SCRIPT", "VARIABLE"}
    )


def relocated(error: MillstreamError, text: str, offset: int) -> MillstreamError:
    """The same error about a slice of `text` that starts at `offset`, pointing into the whole text."""
    if error.position is None or error.sql is None:
        return error
    lines = error.sql.splitlines(keepends=True)[: error.position.line - 1]
    at = offset + sum(map(len, lines)) + error.position.column - 1
    position = position_at(text, at, error.position.length)
    moved = MillstreamError(error.code, error.message, hint=error.hint, position=position, sql=text)
    moved.__cause__ = error.__cause__
    return moved.with_traceback(error.__traceback__)
