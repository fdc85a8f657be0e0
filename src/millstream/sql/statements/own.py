"""millstream's own statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sqlglot import TokenType

from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import RefreshMode, Status
from millstream.sql.statements.model import (
    SESSION_CATALOG,
    AlterStreamTable,
    AttachDatabase,
    CancelRefresh,
    CreateStreamTable,
    DescribeStreamTable,
    DetachDatabase,
    DropStreamTable,
    ExplainStreamTable,
    OwnStatement,
    RefreshStreamTable,
    ServeClause,
    ShowStreamTables,
    WaitForStreamTable,
    WaitPoint,
)
from millstream.sql.statements.scanner import Scanner, stripped
from millstream.sql.statements.serve_clause import SERVE_FORM, serve_clause

_MODES = " | ".join(RefreshMode)
_CREATE_FORM = (
    "CREATE [OR REPLACE] STREAM TABLE [IF NOT EXISTS] name [SCHEDULE '1m' | CALCULATED] "
    f"[REFRESH MODE {_MODES}] [DIALECT 'spark' | 'postgres'] [{SERVE_FORM}] [WITH NO DATA] AS query"
)
_ALTER_FORM = (
    "ALTER STREAM TABLE name SET SCHEDULE '1m' | SET SCHEDULE CALCULATED | "
    f"SET REFRESH MODE {_MODES} | SET STATUS ACTIVE | SET STATUS SUSPENDED | [DIALECT 'spark' | 'postgres'] AS query | "
    f"{SERVE_FORM} | STOP SERVING [CASCADE | KEEP TABLE]"
)
_ATTACH_FORM = (
    "ATTACH POSTGRES 'address' AS name [CDC 'auto' | 'trigger' | 'wal'] "
    "[NUMERIC (schema.table.column AS DECIMAL(p,s) | DEFAULT, …)]"
)
_WAIT_FORM = (
    "WAIT FOR STREAM TABLE name [AFTER LSN 'X/Y' | TRANSACTION n | VERSION n [IN database or table], …] [TIMEOUT '10s']"
)
_MODE = ("refresh mode", tuple(RefreshMode), Code.MODE_INVALID)
_STATUS = ("status", (Status.ACTIVE, Status.SUSPENDED), Code.STATUS_INVALID)


def own_statement(s: Scanner) -> OwnStatement | None:
    """The statement, if it is one of ours; otherwise None, and the scanner has not moved."""
    for phrase, form, read in _OWN:
        if s.accept(phrase):
            s.form = form
            return read(s)
    return None


def _create(s: Scanner, or_replace: bool = False) -> CreateStreamTable:
    s.expect("TABLE")
    if or_replace and s.at("IF NOT EXISTS"):
        s.fail("a name (OR REPLACE and IF NOT EXISTS exclude each other)")
    if_not_exists = s.accept("IF NOT EXISTS")
    name = _table_name(s)
    schedule: str | None = None
    mode: str | None = None
    dialect: str | None = None
    serve: ServeClause | None = None
    no_data = False
    while not s.at("AS"):
        if schedule is None and (s.at("SCHEDULE") or s.at("CALCULATED")):
            schedule = _schedule(s)
        elif mode is None and s.accept("REFRESH MODE"):
            mode = _choice(s, *_MODE)
        elif dialect is None and s.at("DIALECT"):
            dialect = _dialect(s)
        elif not no_data and s.accept("WITH NO DATA"):
            no_data = True
        elif serve is None and s.accept("SERVE TO"):
            serve = serve_clause(s)
        else:
            free = {"SCHEDULE": schedule is None, "REFRESH MODE": mode is None, "DIALECT": dialect is None}
            free |= {"SERVE TO": serve is None, "WITH NO DATA": not no_data}
            s.fail(" or ".join([*(c for c, is_free in free.items() if is_free), "AS and the query"]))
    query, offset = _query(s)
    return CreateStreamTable(
        name, query, offset, schedule, mode, or_replace, if_not_exists, no_data, serve=serve, dialect=dialect
    )


def _alter(s: Scanner) -> AlterStreamTable:
    name = _table_name(s)
    dialect = _dialect(s) if s.at("DIALECT") else None
    if s.at("AS"):
        query, offset = _query(s)
        return AlterStreamTable(name, query=query, query_offset=offset, dialect=dialect)
    if dialect is None and s.accept("SERVE TO"):
        return AlterStreamTable(name, serve=s.last(serve_clause(s)))
    if dialect is None and s.accept("STOP SERVING"):
        cascade = s.accept("CASCADE")
        keep_table = not cascade and s.accept("KEEP TABLE")
        return AlterStreamTable(name, stop_serving=s.last(True), cascade=cascade, keep_table=keep_table)
    s.expect("SET" if dialect is None else "AS", "SET, SERVE TO, STOP SERVING, or AS and the query")
    if s.at("SCHEDULE"):
        return AlterStreamTable(name, set_schedule=s.last(_schedule(s)))
    if s.accept("REFRESH MODE"):
        return AlterStreamTable(name, set_refresh_mode=s.last(_choice(s, *_MODE)))
    s.expect("STATUS", "SCHEDULE, REFRESH MODE or STATUS")
    return AlterStreamTable(name, set_status=s.last(_choice(s, *_STATUS)))


def _drop(s: Scanner) -> DropStreamTable:
    if_exists = s.accept("IF EXISTS")
    return DropStreamTable(_table_name(s), if_exists, cascade=s.last(s.accept("CASCADE")))


def _wait(s: Scanner) -> WaitForStreamTable:
    name = _table_name(s)
    points: list[WaitPoint] = []
    if s.accept("AFTER"):
        points.append(_wait_point(s))
        while s.accept_type(TokenType.COMMA):
            points.append(_wait_point(s))
    timeout: str | None = None
    if s.accept("TIMEOUT"):
        token = s.accept_type(TokenType.STRING)
        if token is None:
            s.fail("a quoted length of time such as '10s'")
        timeout = token.text
    return WaitForStreamTable(name, tuple(points), s.last(timeout))


def _wait_point(s: Scanner) -> WaitPoint:
    value: str | int
    if s.accept("LSN"):
        kind, token = "LSN", s.accept_type(TokenType.STRING)
        if token is None:
            s.fail("a quoted LSN such as '0/16B3748'")
        value = token.text
    else:
        kind = "TRANSACTION" if s.accept("TRANSACTION") else "VERSION"
        if kind == "VERSION":
            s.expect("VERSION", "LSN, TRANSACTION or VERSION")
        token = s.accept_type(TokenType.NUMBER)
        if token is None or not token.text.isdigit():
            s.fail("a whole number")
        value = int(token.text)
    of = ".".join(t.text for t in s.name(quotes='`"')) if s.accept("IN") else None
    return WaitPoint(kind, value, of)


def _attach(s: Scanner) -> AttachDatabase:
    """ATTACH. Errors do not quote the text, which may contain a password."""
    try:
        s.expect("POSTGRES")
        address = s.accept_type(TokenType.STRING)
        if address is None:
            s.fail("a quoted address")
        name = _database_name(s.expect("AS"))
        cdc = "auto"
        if s.accept("CDC"):
            given = s.accept_type(TokenType.STRING) or s.accept_type(TokenType.VAR)
            if given is None:
                s.fail("a capture mode")
            cdc = given.text.lower()
        numeric = _ranges(s) if s.accept("NUMERIC") else ()
        return AttachDatabase(name, address.text, s.last(cdc), numeric)
    except MillstreamError as error:
        raise MillstreamError(
            error.code, "the ATTACH statement cannot be understood", hint=f"the form is {_ATTACH_FORM}"
        ) from None


def _ranges(s: Scanner) -> tuple[tuple[str, str], ...]:
    """`(public.orders.price AS DECIMAL(30,4), …)`: the columns and types as they are written."""
    found: list[tuple[str, str]] = []
    if s.accept_type(TokenType.L_PAREN) is None:
        s.fail("an opening parenthesis")
    while True:
        column = s.name(quotes='`"')
        if len(column) != 3:
            s.fail("a column, such as public.orders.price")
        s.expect("AS")
        first = s.peek()
        if first is None:
            s.fail("DECIMAL(p,s) or DEFAULT")
        s.index += 1
        s.skip_group()
        last = s.piece.tokens[s.index - 1]
        name = ".".join(s.text[t.start : t.end + 1].replace("`", '"') for t in column)
        found.append((name, s.text[first.start : last.end + 1]))
        if s.accept_type(TokenType.R_PAREN):
            return tuple(found)
        if s.accept_type(TokenType.COMMA) is None:
            s.fail("a comma or a closing parenthesis")


def _database_name(s: Scanner) -> str:
    tokens = s.name(quotes='`"')
    if len(tokens) != 1:
        s.fail("a name of one part")
    return tokens[0].text.lower()


# DESCRIBE and EXPLAIN are ours only with the word TABLE: `DESCRIBE stream` asks Spark about a table of that name.
_OWN: tuple[tuple[str, str, Callable[[Scanner], OwnStatement]], ...] = (
    ("CREATE STREAM", _CREATE_FORM, _create),
    ("CREATE OR REPLACE STREAM", _CREATE_FORM, partial(_create, or_replace=True)),
    ("ALTER STREAM", _ALTER_FORM, lambda s: _alter(s.expect("TABLE"))),
    ("DROP STREAM", "DROP STREAM TABLE [IF EXISTS] name [CASCADE]", lambda s: _drop(s.expect("TABLE"))),
    (
        "REFRESH STREAM",
        "REFRESH STREAM TABLE name [FULL]",
        lambda s: RefreshStreamTable(_table_name(s.expect("TABLE")), full=s.last(s.accept("FULL"))),
    ),
    ("WAIT FOR STREAM", _WAIT_FORM, lambda s: _wait(s.expect("TABLE"))),
    (
        "CANCEL REFRESH",
        "CANCEL REFRESH STREAM TABLE name",
        lambda s: CancelRefresh(s.last(_table_name(s.expect("STREAM").expect("TABLE")))),
    ),
    ("SHOW STREAM", "SHOW STREAM TABLES", lambda s: s.expect("TABLES").last(ShowStreamTables())),
    ("DESCRIBE STREAM TABLE", "DESCRIBE STREAM TABLE name", lambda s: DescribeStreamTable(s.last(_table_name(s)))),
    ("DESC STREAM TABLE", "DESC STREAM TABLE name", lambda s: DescribeStreamTable(s.last(_table_name(s)))),
    ("EXPLAIN STREAM TABLE", "EXPLAIN STREAM TABLE name", lambda s: ExplainStreamTable(s.last(_table_name(s)))),
    ("ATTACH", _ATTACH_FORM, _attach),
    (
        "DETACH",
        "DETACH name [CASCADE]",
        lambda s: DetachDatabase(_database_name(s), cascade=s.last(s.accept("CASCADE"))),
    ),
)


def _table_name(s: Scanner) -> TableName:
    tokens = s.name(quotes='`"')  # PostgreSQL's quotes too, which Spark's tokenizer reads as a string
    if not tokens:
        s.fail("a name")
    parts = [t.text for t in tokens]
    if len(parts) == 3 and parts[0].lower() == SESSION_CATALOG:
        parts = parts[1:]
    position = s.span(tokens[0], tokens[-1])
    hint = "use name or schema.name, of letters, digits and underscores"
    if any("." in p for p in parts):
        raise s.error(Code.NAME_INVALID, f"a name may not contain a dot: {'.'.join(parts)!r}", hint, position)
    if len(parts) > 2:
        raise s.error(Code.NAME_INVALID, f"{'.'.join(parts)!r} is not a valid name for a stream table", hint, position)
    try:
        return TableName.parse(".".join(parts))
    except MillstreamError as e:
        raise s.error(e.code, e.message, e.hint or hint, position) from None


def _dialect(s: Scanner) -> str:
    s.expect("DIALECT")
    token = s.accept_type(TokenType.STRING) or s.accept_type(TokenType.VAR)
    if token is None:
        s.fail("spark or postgres")
    return token.text.lower()


def _schedule(s: Scanner) -> str:
    s.accept("SCHEDULE")
    if s.accept("CALCULATED"):
        return "CALCULATED"
    token = s.accept_type(TokenType.STRING)
    if token is None:
        s.fail("a quoted schedule such as '1m', or CALCULATED")
    schedule = token.text.strip()
    return schedule.upper() if schedule.upper() == "CALCULATED" else schedule


def _choice(s: Scanner, what: str, choices: Sequence[str], code: Code) -> str:
    """One of the choices, quoted or not, in any case."""
    position = s.here()
    token = s.accept_type(TokenType.STRING) or s.accept_type(TokenType.VAR)
    if token is None:
        s.fail(f"a {what}")
    value = " ".join(token.text.upper().split())
    if f"{value} STRICT" in choices and s.accept("STRICT"):
        value = f"{value} STRICT"
    if value not in choices:
        raise s.error(code, f"{value} is not a {what} that can be set", f"use {', '.join(choices)}", position)
    return value


def _query(s: Scanner) -> tuple[str, int]:
    """The exact text after AS, up to the end of the statement, and where it begins."""
    as_token = s.peek()
    s.index += 1
    if as_token is None or (s.peek() is None and s.piece.broken_at is None):
        s.fail("a query after AS")
    # A text this tokenizer cannot finish may be valid in the query's own dialect: the query's parser decides.
    query = stripped(s.text, as_token.end + 1, s.piece.stop)
    return query.text, query.offset
