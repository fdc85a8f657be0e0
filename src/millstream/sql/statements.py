"""Which statement a SQL text is: one of millstream's own, or a plain one and what that writes.

Works on the tokens of sqlglot's Spark tokenizer and never renders: a query is the exact slice of the text after AS,
and a plain statement goes to Spark as it was written. Positions count from the start of the text that was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import ClassVar, NoReturn, TypeVar

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from millstream.errors import Code, MillstreamError, Position
from millstream.naming import DEFAULT_SCHEMA, TableName
from millstream.results import RefreshMode, Status

SESSION_CATALOG = "spark_catalog"

T = TypeVar("T")

# --- What a statement can be -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateStreamTable:
    """CREATE STREAM TABLE. `text[query_offset:]` starts with `query`; clauses that were not given are None."""

    name: TableName
    query: str
    query_offset: int
    schedule: str | None = None
    refresh_mode: str | None = None
    or_replace: bool = False
    if_not_exists: bool = False
    with_no_data: bool = False
    serve_to: str | None = None


@dataclass(frozen=True, slots=True)
class AlterStreamTable:
    """ALTER STREAM TABLE; exactly one of the four changes is given."""

    name: TableName
    set_schedule: str | None = None
    set_refresh_mode: str | None = None
    set_status: str | None = None
    query: str | None = None
    query_offset: int = 0


@dataclass(frozen=True, slots=True)
class DropStreamTable:
    """DROP STREAM TABLE."""

    name: TableName
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RefreshStreamTable:
    """REFRESH STREAM TABLE."""

    name: TableName
    full: bool = False


@dataclass(frozen=True, slots=True)
class ShowStreamTables:
    """SHOW STREAM TABLES."""


@dataclass(frozen=True, slots=True)
class DescribeStreamTable:
    """DESCRIBE STREAM TABLE."""

    name: TableName


@dataclass(frozen=True, slots=True)
class ExplainStreamTable:
    """EXPLAIN STREAM TABLE."""

    name: TableName


class Effect(StrEnum):
    """What a plain statement does to its targets."""

    READ = "READ"  # nothing
    ROWS = "ROWS"  # changes the rows of a table
    DEFINITION = "DEFINITION"  # creates, alters or removes an object
    FILES = "FILES"  # rewrites or removes files; the rows stay
    SESSION = "SESSION"  # changes this session only
    UNKNOWN = "UNKNOWN"  # Spark knows, or refuses it


@dataclass(frozen=True, slots=True)
class Target:
    """The object a plain statement is about: the parts of its name, or a path; `position` is where it is written."""

    parts: tuple[str, ...] = ()
    path: str | None = None
    position: Position | None = field(default=None, compare=False)

    def table_name(self, current_schema: str = DEFAULT_SCHEMA) -> TableName | None:
        """The name within the lake; None for a path or another catalog's table."""
        parts = [p.lower() for p in self.parts]
        if len(parts) == 3 and parts[0] == SESSION_CATALOG:
            parts = parts[1:]
        if not 1 <= len(parts) <= 2:
            return None
        return TableName(parts[0] if len(parts) == 2 else current_schema.lower(), parts[-1])

    def schema_name(self) -> str | None:
        """The name of a schema, where `Other.kind` is SCHEMA; None for another catalog's."""
        parts = [p.lower() for p in self.parts]
        if len(parts) == 2 and parts[0] == SESSION_CATALOG:
            parts = parts[1:]
        return parts[0] if len(parts) == 1 else None

    def __str__(self) -> str:
        return self.path if self.path is not None else ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Other:
    """A plain Spark statement: the text as given, and what it does to which objects.

    `verb` is the word that decides (INSERT for `WITH … INSERT INTO …`), `kind` what the targets are: TABLE, VIEW,
    FUNCTION, SCHEMA, VARIABLE or DIRECTORY, SCRIPT for a whole `BEGIN … END`, None where nothing is named.
    `changes_columns` is set for an ALTER TABLE that drops, renames, retypes or replaces columns; `columns` then names
    them (empty: any may be meant).
    """

    text: str
    verb: str
    kind: str | None = None
    targets: tuple[Target, ...] = ()
    effect: Effect = Effect.UNKNOWN
    temporary: bool = False
    or_replace: bool = False
    if_not_exists: bool = False
    if_exists: bool = False
    cascade: bool = False
    changes_columns: bool = False
    columns: tuple[str, ...] = ()
    renamed_to: Target | None = None


OwnStatement = (
    CreateStreamTable
    | AlterStreamTable
    | DropStreamTable
    | RefreshStreamTable
    | ShowStreamTables
    | DescribeStreamTable
    | ExplainStreamTable
)
Statement = OwnStatement | Other


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement of a longer text: `whole[offset:offset + len(text)] == text`."""

    text: str
    offset: int


# --- The public calls ------------------------------------------------------------------------------------------------


def parse_statement(text: str) -> Statement:
    """Recognise the one statement in `text`; a closing semicolon is allowed.

    >>> parse_statement("REFRESH STREAM TABLE totals FULL")
    RefreshStreamTable(name=TableName(schema='default', name='totals'), full=True)

    Raises:
        MillstreamError: SYNTAX_ERROR, NAME_INVALID, MODE_INVALID, STATUS_INVALID or UNSUPPORTED_SQL, with a position.
    """
    pieces = [p for p in _pieces(text) if not p.is_empty]
    if not pieces:
        raise MillstreamError(Code.SYNTAX_ERROR, "there is no statement", hint="give one, such as SHOW STREAM TABLES")
    scanner = _Scanner(text, pieces[0])
    own = _own_statement(scanner)
    if len(pieces) > 1:
        hint = "give the statements one by one, or all of them to `millstream sql`"
        second = _Scanner(text, pieces[1])
        raise second.error(Code.SYNTAX_ERROR, "one statement was expected, here another begins", hint, second.here())
    return own or _classify(scanner)


def split_statements(text: str) -> tuple[StatementText, ...]:
    """Cut a text at its top-level semicolons; a `BEGIN … END` script is one statement, empty ones are left out.

    >>> [s.text for s in split_statements("SELECT ';' ; /* two; */ SELECT 2;")]
    ["SELECT ';'", '/* two; */ SELECT 2']
    """
    return tuple(_stripped(text, p.start, p.stop) for p in _pieces(text) if not p.is_empty)


def position_at(text: str, offset: int, length: int = 1) -> Position:
    """The line and column of a character, counted as `MillstreamError` underlines them."""
    lines = (text[:offset] + "x").splitlines()
    return Position(len(lines), len(lines[-1]), length)


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


# --- Tokens ----------------------------------------------------------------------------------------------------------

_OPENED = {"`": ("quoted name", "`"), "/": ("comment", "*/"), "$": ("string", "$$")}
_BLANKS_AND_COMMENTS = re.compile(r"(?:\s|--[^\r\n]*|/\*.*?\*/)*", re.DOTALL)


class _Words(Spark.Tokenizer):
    """Spark's lexical rules without keywords: each word is one token, none is glued to its neighbour or swallows it."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()
    RAW_STRINGS: ClassVar[list[str | tuple[str, str]]] = [*Spark.Tokenizer.RAW_STRINGS, ("$$", "$$")]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One statement: its tokens, and the slice of the text up to its semicolon.

    `broken_at` is where a string, a quoted name or a comment begins that does not end; the tokens stop before it.
    """

    tokens: Sequence[Token]
    start: int
    stop: int
    broken_at: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.tokens and self.broken_at is None


def _tokenize(text: str) -> tuple[list[Token], int | None]:
    tokenizer = _Words(dialect="spark")
    try:
        return tokenizer.tokenize(text), None
    except TokenError:
        tokens = tokenizer.tokens
        blanks = _BLANKS_AND_COMMENTS.match(text, tokens[-1].end + 1 if tokens else 0)
        return tokens, min(blanks.end() if blanks else 0, len(text) - 1)


def _pieces(text: str) -> Iterator[_Piece]:
    """The statements between top-level semicolons, empty ones included."""
    tokens, broken_at = _tokenize(text)
    first = start = index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.token_type is TokenType.SEMICOLON:
            yield _Piece(tokens[first:index], start, token.start)
            first, start = index + 1, token.end + 1
        elif _begins_script(tokens, first, index):
            index = _script_end(tokens, index)
        index += 1
    yield _Piece(tokens[first:], start, len(text), broken_at)


def _begins_script(tokens: Sequence[Token], first: int, index: int) -> bool:
    """Whether the token at `index` is the BEGIN, perhaps after a label, that opens the statement at `first`."""
    if index + 1 >= len(tokens) or _word(tokens[index]) != "BEGIN" or _word(tokens[index + 1]) == "TRANSACTION":
        return False
    return index == first or (index == first + 2 and tokens[first + 1].token_type is TokenType.COLON)


def _script_end(tokens: Sequence[Token], index: int) -> int:
    """The index of the END that closes the BEGIN at `index`; of IF, LOOP and the like, `END IF` is passed over."""
    depth = 0
    for at in range(index, len(tokens)):
        word = _word(tokens[at])
        before = _word(tokens[at - 1]) if at else ""
        after = _word(tokens[at + 1]) if at + 1 < len(tokens) else ""
        depth += word == "BEGIN" or (word == "CASE" and before != "END")
        depth -= word == "END" and after not in {"IF", "WHILE", "FOR", "LOOP", "REPEAT"}
        if depth == 0:
            return at
    return len(tokens)


def _stripped(text: str, start: int, stop: int) -> StatementText:
    piece = text[start:stop]
    return StatementText(piece.strip(), start + len(piece) - len(piece.lstrip()))


def _word(token: Token | None) -> str:
    """The unquoted word in upper case; empty for everything else."""
    return token.text.upper() if token is not None and token.token_type is TokenType.VAR else ""


class _Scanner:
    """A cursor over the tokens of one statement; whatever it refuses carries a position."""

    def __init__(self, text: str, piece: _Piece) -> None:
        self.text = text
        self.piece = piece
        self.index = 0
        self.form = ""  # of the statement that was recognised, for the hint

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.index + ahead
        return self.piece.tokens[index] if index < len(self.piece.tokens) else None

    def at(self, phrase: str) -> bool:
        """Whether these words come next, unquoted."""
        return all(_word(self.peek(i)) == word for i, word in enumerate(phrase.split()))

    def at_type(self, kind: TokenType) -> bool:
        token = self.peek()
        return token is not None and token.token_type is kind

    def accept(self, phrase: str) -> bool:
        found = self.at(phrase)
        self.index += len(phrase.split()) if found else 0
        return found

    def accept_type(self, kind: TokenType) -> Token | None:
        token = self.peek() if self.at_type(kind) else None
        self.index += token is not None
        return token

    def expect(self, phrase: str, expected: str = "") -> _Scanner:
        if not self.accept(phrase):
            self.fail(expected or phrase)
        return self

    def last(self, value: T) -> T:
        """The value, which must have been the last thing of the statement."""
        if self.peek() is not None or self.piece.broken_at is not None:
            self.fail("the end of the statement")
        return value

    def fail(self, expected: str) -> NoReturn:
        token = self.peek()
        if token is None:
            self.refuse_broken()
        found = repr(self.text[token.start : token.end + 1]) if token else "the end of the statement"
        message = f"expected {expected}, found {found}"
        raise self.error(Code.SYNTAX_ERROR, message, f"the form is {self.form}", self.here())

    def refuse_broken(self) -> None:
        at = self.piece.broken_at
        if at is not None:
            what, end = _OPENED.get(self.text[at], ("string", self.text[at]))
            message = f"the {what} that begins here does not end"
            raise self.error(Code.SYNTAX_ERROR, message, f"close it with {end}", position_at(self.text, at))

    def error(self, code: Code, message: str, hint: str, position: Position) -> MillstreamError:
        return MillstreamError(code, message, hint=hint, position=position, sql=self.text)

    def here(self) -> Position:
        token = self.peek()
        if token is not None:
            return self.span(token, token)
        tokens = self.piece.tokens
        return position_at(self.text, tokens[-1].end + 1 if tokens else self.piece.broken_at or 0)

    def span(self, first: Token, last: Token) -> Position:
        length = last.end + 1 - first.start
        several_lines = len(self.text[first.start : last.end + 1].splitlines()) > 1
        return position_at(self.text, first.start, 1 if several_lines else length)

    def name(self, quotes: str = "`") -> list[Token]:
        """The tokens of the dotted name that begins here; none, and nothing taken, if there is no name."""
        start = self.index
        parts: list[Token] = []
        while (token := self.peek()) is not None and (
            token.token_type in {TokenType.VAR, TokenType.IDENTIFIER} or self.text[token.start] in quotes
        ):
            parts.append(token)
            self.index += 1
            if not self.accept_type(TokenType.DOT):
                return parts
        self.index = start
        return []

    def skip_group(self) -> bool:
        """Skip a parenthesised group, if one begins here."""
        if not self.at_type(TokenType.L_PAREN):
            return False
        depth = 0
        while (token := self.peek()) is not None:
            self.index += 1
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if depth == 0:
                break
        return True


# --- millstream's own statements -------------------------------------------------------------------------------------

_MODES = " | ".join(RefreshMode)
_CREATE_FORM = (
    "CREATE [OR REPLACE] STREAM TABLE [IF NOT EXISTS] name [SCHEDULE '1m' | CALCULATED] "
    f"[REFRESH MODE {_MODES}] [WITH NO DATA] AS query"
)
_ALTER_FORM = (
    "ALTER STREAM TABLE name SET SCHEDULE '1m' | SET SCHEDULE CALCULATED | "
    f"SET REFRESH MODE {_MODES} | SET STATUS ACTIVE | SET STATUS SUSPENDED | AS query"
)
_MODE = ("refresh mode", tuple(RefreshMode), Code.MODE_INVALID)
_STATUS = ("status", (Status.ACTIVE, Status.SUSPENDED), Code.STATUS_INVALID)


def _own_statement(s: _Scanner) -> OwnStatement | None:
    if s.at("ATTACH") or s.at("DETACH"):
        raise _later(s, _word(s.peek()), "read Delta tables of the lake instead")
    for phrase, form, read in _OWN:
        if s.accept(phrase):
            s.form = form
            return read(s)
    return None


def _create(s: _Scanner, or_replace: bool = False) -> CreateStreamTable:
    s.expect("TABLE")
    if or_replace and s.at("IF NOT EXISTS"):
        s.fail("a name (OR REPLACE and IF NOT EXISTS exclude each other)")
    if_not_exists = s.accept("IF NOT EXISTS")
    name = _table_name(s)
    schedule: str | None = None
    mode: str | None = None
    no_data = False
    while not s.at("AS"):
        if schedule is None and (s.at("SCHEDULE") or s.at("CALCULATED")):
            schedule = _schedule(s)
        elif mode is None and s.accept("REFRESH MODE"):
            mode = _choice(s, *_MODE)
        elif not no_data and s.accept("WITH NO DATA"):
            no_data = True
        elif s.at("SERVE TO"):
            raise _later(s, "SERVE TO", "leave the clause out: the result is a Delta table that any reader can use")
        else:
            free = {"SCHEDULE": schedule is None, "REFRESH MODE": mode is None, "WITH NO DATA": not no_data}
            s.fail(" or ".join([*(c for c, is_free in free.items() if is_free), "AS and the query"]))
    query, offset = _query(s)
    return CreateStreamTable(name, query, offset, schedule, mode, or_replace, if_not_exists, no_data)


def _alter(s: _Scanner) -> AlterStreamTable:
    name = _table_name(s)
    if s.at("AS"):
        query, offset = _query(s)
        return AlterStreamTable(name, query=query, query_offset=offset)
    s.expect("SET", "SET, or AS and the query")
    if s.at("SCHEDULE"):
        return AlterStreamTable(name, set_schedule=s.last(_schedule(s)))
    if s.accept("REFRESH MODE"):
        return AlterStreamTable(name, set_refresh_mode=s.last(_choice(s, *_MODE)))
    s.expect("STATUS", "SCHEDULE, REFRESH MODE or STATUS")
    return AlterStreamTable(name, set_status=s.last(_choice(s, *_STATUS)))


def _drop(s: _Scanner) -> DropStreamTable:
    if_exists = s.accept("IF EXISTS")
    return DropStreamTable(_table_name(s), if_exists, cascade=s.last(s.accept("CASCADE")))


# DESCRIBE and EXPLAIN need the word TABLE to be ours: `DESCRIBE stream` asks Spark about a table of that name.
_OWN: tuple[tuple[str, str, Callable[[_Scanner], OwnStatement]], ...] = (
    ("CREATE STREAM", _CREATE_FORM, _create),
    ("CREATE OR REPLACE STREAM", _CREATE_FORM, partial(_create, or_replace=True)),
    ("ALTER STREAM", _ALTER_FORM, lambda s: _alter(s.expect("TABLE"))),
    ("DROP STREAM", "DROP STREAM TABLE [IF EXISTS] name [CASCADE]", lambda s: _drop(s.expect("TABLE"))),
    (
        "REFRESH STREAM",
        "REFRESH STREAM TABLE name [FULL]",
        lambda s: RefreshStreamTable(_table_name(s.expect("TABLE")), full=s.last(s.accept("FULL"))),
    ),
    ("SHOW STREAM", "SHOW STREAM TABLES", lambda s: s.expect("TABLES").last(ShowStreamTables())),
    ("DESCRIBE STREAM TABLE", "DESCRIBE STREAM TABLE name", lambda s: DescribeStreamTable(s.last(_table_name(s)))),
    ("DESC STREAM TABLE", "DESC STREAM TABLE name", lambda s: DescribeStreamTable(s.last(_table_name(s)))),
    ("EXPLAIN STREAM TABLE", "EXPLAIN STREAM TABLE name", lambda s: ExplainStreamTable(s.last(_table_name(s)))),
)


def _table_name(s: _Scanner) -> TableName:
    tokens = s.name(quotes='`"')  # PostgreSQL's quotes too; to Spark's tokenizer they are a string
    if not tokens:
        s.fail("a name")
    parts = [t.text for t in tokens]
    if len(parts) == 3 and parts[0].lower() == SESSION_CATALOG:
        parts = parts[1:]
    position = s.span(tokens[0], tokens[-1])
    hint = "use name or schema.name, of letters, digits and underscores"
    if any("." in p for p in parts):
        raise s.error(Code.NAME_INVALID, f"a name may not contain a dot: {'.'.join(parts)!r}", hint, position)
    try:
        return TableName.parse(".".join(parts))
    except MillstreamError as e:
        raise s.error(e.code, e.message, e.hint or hint, position) from None


def _schedule(s: _Scanner) -> str:
    s.accept("SCHEDULE")
    if s.accept("CALCULATED"):
        return "CALCULATED"
    token = s.accept_type(TokenType.STRING)
    if token is None:
        s.fail("a quoted schedule such as '1m', or CALCULATED")
    schedule = token.text.strip()
    return schedule.upper() if schedule.upper() == "CALCULATED" else schedule


def _choice(s: _Scanner, what: str, choices: Sequence[str], code: Code) -> str:
    """One of the choices, quoted or not, in any case."""
    position = s.here()
    token = s.accept_type(TokenType.STRING) or s.accept_type(TokenType.VAR)
    if token is None:
        s.fail(f"a {what}")
    value = " ".join(token.text.upper().split())
    if f"{value} STRICT" in choices and s.accept("STRICT"):
        value = f"{value} STRICT"
    if value not in choices:
        raise s.error(code, f"{value} is no {what} that can be set", f"use {', '.join(choices)}", position)
    return value


def _query(s: _Scanner) -> tuple[str, int]:
    """The exact text after AS, up to the end of the statement, and where it begins."""
    as_token = s.peek()
    s.index += 1
    if as_token is None or (s.peek() is None and s.piece.broken_at is None):
        s.fail("a query after AS")
    # What this tokenizer cannot finish may be fine in the query's own dialect: the query's parser decides.
    query = _stripped(s.text, as_token.end + 1, s.piece.stop)
    return query.text, query.offset


def _later(s: _Scanner, words: str, hint: str) -> MillstreamError:
    first, last = s.piece.tokens[s.index], s.piece.tokens[s.index + len(words.split()) - 1]
    message = f"{words} is for PostgreSQL databases; this version of millstream serves Delta tables only"
    return s.error(Code.UNSUPPORTED_SQL, message, hint, s.span(first, last))


# --- What a plain statement does -------------------------------------------------------------------------------------

_INSERT = "INSERT [WITH SCHEMA EVOLUTION] INTO|OVERWRITE [TABLE]"
_KINDS = "TABLE|VIEW|FUNCTION|SCHEMA|DATABASE|NAMESPACE"

# The words before a target and what the statement does to it: `[…]` may be missing, `A|B` is a choice, `*` any token.
_FORMS: tuple[tuple[str, Effect], ...] = (
    ("INSERT [WITH SCHEMA EVOLUTION] OVERWRITE [LOCAL] DIRECTORY", Effect.ROWS),
    (_INSERT, Effect.ROWS),
    ("UPDATE", Effect.ROWS),
    ("DELETE FROM", Effect.ROWS),
    ("MERGE [WITH SCHEMA EVOLUTION] INTO", Effect.ROWS),
    ("TRUNCATE TABLE", Effect.ROWS),
    ("COPY INTO", Effect.ROWS),
    ("LOAD DATA [LOCAL] INPATH * [OVERWRITE] INTO TABLE", Effect.ROWS),
    ("RESTORE [TABLE]", Effect.ROWS),
    ("OPTIMIZE", Effect.FILES),
    ("VACUUM", Effect.FILES),
    ("REORG TABLE", Effect.FILES),
    ("GENERATE * FOR TABLE", Effect.FILES),
    (f"CREATE [OR REPLACE] [GLOBAL] [TEMP|TEMPORARY] [EXTERNAL] {_KINDS} [IF NOT EXISTS]", Effect.DEFINITION),
    ("REPLACE TABLE", Effect.DEFINITION),
    (f"DROP [TEMP|TEMPORARY] {_KINDS} [IF EXISTS]", Effect.DEFINITION),
    (f"ALTER {_KINDS} [IF EXISTS]", Effect.DEFINITION),
    (f"COMMENT ON {_KINDS}", Effect.DEFINITION),
    ("CONVERT TO DELTA", Effect.DEFINITION),
    ("MSCK REPAIR TABLE", Effect.DEFINITION),
    ("ANALYZE TABLE", Effect.READ),
    ("CACHE [LAZY] TABLE", Effect.SESSION),
    ("UNCACHE TABLE [IF EXISTS]", Effect.SESSION),
    ("REFRESH TABLE|FUNCTION", Effect.SESSION),
    ("USE [SCHEMA|DATABASE|NAMESPACE]", Effect.SESSION),
    ("DECLARE [OR REPLACE] [VARIABLE|VAR]", Effect.SESSION),
    ("DROP TEMP|TEMPORARY VARIABLE|VAR [IF EXISTS]", Effect.SESSION),
)
_READS = frozenset({"SELECT", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "LIST"})
_OF_THE_SESSION = frozenset({"SET", "RESET", "CLEAR", "ADD", "REFRESH", "USE"})
_KIND_OF = {kind: kind for kind in ("TABLE", "VIEW", "FUNCTION", "SCHEMA", "VARIABLE", "DIRECTORY")}
_KIND_OF |= {"DATABASE": "SCHEMA", "NAMESPACE": "SCHEMA", "VAR": "VARIABLE"}
_KIND_UNSAID = {"USE": "SCHEMA", "DECLARE": "VARIABLE"}
_AFTER_A_TABLE = frozenset({"VALUES", "SELECT", "FROM", "WITH", "PARTITION", "BY", "REPLACE", "TO"})
_FILE_FORMATS = frozenset({"delta", "parquet", "orc", "csv", "json", "text", "avro"})
_ABSOLUTE_PATH = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_BEFORE_SCRIPT_STATEMENTS = frozenset({"BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT"})
_STRONGEST_FIRST = (Effect.DEFINITION, Effect.ROWS, Effect.FILES, Effect.UNKNOWN, Effect.SESSION, Effect.READ)


def _classify(s: _Scanner) -> Other:
    s.refuse_broken()
    if any(_begins_script(s.piece.tokens, 0, index) for index in (0, 2)):
        return _script(s)
    _skip_ctes(s)
    if s.accept("EXECUTE IMMEDIATE"):
        return _execute_immediate(s)
    for pattern, effect in _FORMS:
        start = s.index
        words = _match(s, pattern)
        if words:
            return _about_target(s, words, effect)
        s.index = start
    verb = _word(s.peek()) or "SELECT"
    if verb == "FROM" and (inserts := _multi_insert(s)):
        return Other(s.text, "INSERT", "TABLE", inserts, Effect.ROWS)
    effect = Effect.READ if verb in _READS else Effect.SESSION if verb in _OF_THE_SESSION else Effect.UNKNOWN
    return Other(s.text, verb, effect=effect)


def _match(s: _Scanner, pattern: str) -> list[str]:
    """The words and phrases of the pattern that the text has, which the scanner has then passed; none if it differs."""
    matched: list[str] = []
    for step in re.findall(r"\[[^]]+\]|\S+", pattern):
        if step == "*" and s.peek() is not None:
            s.index += 1
        elif step == "[TABLE]" and _is_called_table(s):
            continue
        elif found := next((phrase for phrase in step.strip("[]").split("|") if s.accept(phrase)), None):
            matched.append(found)
        elif not step.startswith("["):
            return []
    return matched


def _is_called_table(s: _Scanner) -> bool:
    """Whether TABLE is the name itself, as Spark allows: `INSERT INTO table VALUES (1)`."""
    after = s.peek(1)
    return after is None or after.token_type in {TokenType.DOT, TokenType.L_PAREN} or _word(after) in _AFTER_A_TABLE


def _about_target(s: _Scanner, words: list[str], effect: Effect) -> Other:
    verb = words[0]
    kind = next((_KIND_OF[w] for w in words if w in _KIND_OF), _KIND_UNSAID.get(verb, "TABLE"))
    temporary = "TEMP" in words or "TEMPORARY" in words
    target = _target(s, name_allowed=kind != "DIRECTORY")
    other = Other(
        s.text,
        verb,
        kind,
        (target,) if target else (),
        Effect.SESSION if temporary else effect,
        temporary=temporary,
        or_replace="OR REPLACE" in words or verb == "REPLACE",
        if_not_exists="IF NOT EXISTS" in words,
        if_exists="IF EXISTS" in words,
        cascade=verb == "DROP" and _word(s.piece.tokens[-1]) == "CASCADE",
    )
    return _altered(s, other) if verb == "ALTER" else other


def _target(s: _Scanner, name_allowed: bool = True) -> Target | None:
    first = s.peek()
    if first is None:
        return None
    # A session may read double quotes as a name's.
    is_path = s.text[first.start] == "'" or _ABSOLUTE_PATH.match(first.text)
    if is_path and s.accept_type(TokenType.STRING):
        return Target(path=first.text, position=s.span(first, first))
    if not name_allowed:
        return None
    if first.token_type in {TokenType.PARAMETER, TokenType.PLACEHOLDER, TokenType.COLON}:
        raise _hidden_target(s)
    following = s.peek(1)
    if s.at("IDENTIFIER") and following and following.token_type is TokenType.L_PAREN:
        return _identifier_clause(s)
    tokens = s.name(quotes='`"')
    return _named([t.text for t in tokens], s.span(tokens[0], tokens[-1])) if tokens else None


def _identifier_clause(s: _Scanner) -> Target:
    """The name in `IDENTIFIER('schema.name')`; what has to be computed cannot be seen."""
    position = s.here()
    s.index += 2
    literal = s.accept_type(TokenType.STRING)
    if literal is None or not s.accept_type(TokenType.R_PAREN):
        raise _hidden_target(s)
    inner = _Scanner(literal.text, next(_pieces(literal.text)))
    return _named([t.text for t in inner.name()], position)


def _hidden_target(s: _Scanner) -> MillstreamError:
    message = "it cannot be seen which object the statement changes"
    return s.error(Code.UNSUPPORTED_SQL, message, "write the name out, without variables or expressions", s.here())


def _named(parts: list[str], position: Position) -> Target:
    if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS and _ABSOLUTE_PATH.match(parts[1]):
        return Target(path=parts[1], position=position)
    return Target(tuple(parts), position=position)


def _altered(s: _Scanner, other: Other) -> Other:
    """What follows the name in an ALTER; only what makes columns disappear or change is told apart."""
    if s.accept("RENAME TO"):
        return replace(other, renamed_to=_target(s))
    if other.kind != "TABLE":
        return other
    if s.accept("REPLACE COLUMNS"):
        return replace(other, changes_columns=True)
    if s.accept("RENAME COLUMN"):
        return replace(other, changes_columns=True, columns=tuple(t.text for t in s.name()[:1]))
    if s.accept("DROP COLUMN") or s.accept("DROP COLUMNS"):
        s.accept("IF EXISTS")
        s.accept_type(TokenType.L_PAREN)
        return replace(other, changes_columns=True, columns=_column_list(s, harmless=()))
    if s.accept("ALTER") or s.accept("CHANGE"):
        s.accept("COLUMN")
        columns = _column_list(s, harmless=("COMMENT", "SET DEFAULT", "DROP DEFAULT", "SYNC IDENTITY"))
        return replace(other, changes_columns=bool(columns), columns=columns)
    return other


def _column_list(s: _Scanner, harmless: Sequence[str]) -> tuple[str, ...]:
    """The columns that are named one by one, without those that only see a harmless change."""
    columns: list[str] = []
    while tokens := s.name():
        if not any(s.at(phrase) for phrase in harmless):
            columns.append(tokens[0].text)
        while s.peek() is not None and not s.at_type(TokenType.COMMA):
            if not s.skip_group():
                s.index += 1
        s.accept_type(TokenType.COMMA)
    return tuple(columns)


def _skip_ctes(s: _Scanner) -> None:
    """Pass `WITH a AS (…), b (x) AS (…)`, so that the scanner stands at the verb behind it."""
    if not s.accept("WITH"):
        return
    s.accept("RECURSIVE")
    while s.name():
        s.skip_group()
        if s.accept("MAX RECURSION LEVEL"):
            s.index += 1
        s.accept("AS")
        if not s.skip_group() or not s.accept_type(TokenType.COMMA):
            return


def _multi_insert(s: _Scanner) -> tuple[Target, ...]:
    """The targets of `FROM t INSERT INTO a SELECT … INSERT INTO b SELECT …`."""
    targets: list[Target] = []
    while s.peek() is not None:
        if s.skip_group():
            continue
        start = s.index
        words = _match(s, _INSERT)
        if words and (target := _target(s)):
            targets.append(target)
        else:
            s.index = start + 1
    return tuple(targets)


def _execute_immediate(s: _Scanner) -> Other:
    literal = s.peek()
    if literal is None or not s.accept_type(TokenType.STRING) or (s.peek() and not s.at("INTO") and not s.at("USING")):
        return Other(s.text, "EXECUTE")  # computed: only Spark will know
    inner = parse_statement(literal.text)
    if not isinstance(inner, Other):
        return Other(s.text, "EXECUTE")
    position = s.span(literal, literal)
    return replace(inner, text=s.text, targets=tuple(replace(t, position=position) for t in inner.targets))


def _script(s: _Scanner) -> Other:
    """`BEGIN … END`: the targets of all statements inside, and the strongest of their effects."""
    tokens = s.piece.tokens
    found: list[Other] = []
    for index in range(1, len(tokens)):
        before = tokens[index - 1]
        if before.token_type is not TokenType.SEMICOLON and _word(before) not in _BEFORE_SCRIPT_STATEMENTS:
            continue
        stop = next((i for i in range(index, len(tokens)) if tokens[i].token_type is TokenType.SEMICOLON), len(tokens))
        inner = _Scanner(s.text, _Piece(tokens[index:stop], s.piece.start, s.piece.stop))
        is_block = _word(tokens[index]) in {"", "BEGIN", "END", "IF", "WHILE", "FOR", "CASE"}
        if not is_block and not inner.at("UPDATE SET"):  # the latter is a branch of a MERGE
            found.append(_classify(inner))
    effect = next((e for e in _STRONGEST_FIRST if any(o.effect is e for o in found)), Effect.READ)
    changed = [o for o in found if o.effect not in {Effect.READ, Effect.SESSION}]
    return Other(s.text, "BEGIN", "SCRIPT", tuple(t for o in changed for t in o.targets), effect)
