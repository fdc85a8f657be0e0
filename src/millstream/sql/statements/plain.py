"""What a plain statement does, and to which tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import TokenType

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.statements.model import Effect, Other, Target
from millstream.sql.statements.own import own_statement
from millstream.sql.statements.scanner import Piece, Scanner, begins_script, pieces_of, word_of

_INSERT = "INSERT [WITH SCHEMA EVOLUTION] INTO|OVERWRITE [TABLE]"
_KINDS = "TABLE|VIEW|FUNCTION|SCHEMA|DATABASE|NAMESPACE"

# The words before a target and what the statement does to it: `[…]` is optional, `A|B` is a choice, `*` is any token.
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


def classify(s: Scanner) -> Other:
    """What a statement that is not millstream's own writes or defines."""
    s.refuse_broken()
    if any(begins_script(s.piece.tokens, 0, index) for index in (0, 2)):
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
    verb = word_of(s.peek()) or "SELECT"
    if verb == "FROM" and (inserts := _multi_insert(s)):
        return Other(s.text, "INSERT", "TABLE", inserts, Effect.ROWS)
    effect = Effect.READ if verb in _READS else Effect.SESSION if verb in _OF_THE_SESSION else Effect.UNKNOWN
    return Other(s.text, verb, effect=effect)


def _match(s: Scanner, pattern: str) -> list[str]:
    """The words and phrases of the pattern that match; the scanner moves past them. Empty if the text differs."""
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


def _is_called_table(s: Scanner) -> bool:
    """Whether TABLE is the name itself, as Spark allows: `INSERT INTO table VALUES (1)`."""
    after = s.peek(1)
    return after is None or after.token_type in {TokenType.DOT, TokenType.L_PAREN} or word_of(after) in _AFTER_A_TABLE


def _about_target(s: Scanner, words: list[str], effect: Effect) -> Other:
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
        cascade=verb == "DROP" and word_of(s.piece.tokens[-1]) == "CASCADE",
    )
    return _altered(s, other) if verb == "ALTER" else other


def _target(s: Scanner, name_allowed: bool = True) -> Target | None:
    first = s.peek()
    if first is None:
        return None
    # In some sessions, double quotes enclose a name.
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


def _identifier_clause(s: Scanner) -> Target:
    """The name in `IDENTIFIER('schema.name')`; a computed name is refused."""
    position = s.here()
    s.index += 2
    literal = s.accept_type(TokenType.STRING)
    if literal is None or not s.accept_type(TokenType.R_PAREN):
        raise _hidden_target(s)
    inner = Scanner(literal.text, next(pieces_of(literal.text)))
    return _named([t.text for t in inner.name()], position)


def _hidden_target(s: Scanner) -> MillstreamError:
    message = "the object that the statement changes cannot be determined"
    return s.error(Code.UNSUPPORTED_SQL, message, "write the name out, without variables or expressions", s.here())


def _named(parts: list[str], position: Position) -> Target:
    if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS and _ABSOLUTE_PATH.match(parts[1]):
        return Target(path=parts[1], position=position)
    return Target(tuple(parts), position=position)


def _altered(s: Scanner, other: Other) -> Other:
    """Read what follows the name in an ALTER; only clauses that remove or change columns are distinguished."""
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


def _column_list(s: Scanner, harmless: Sequence[str]) -> tuple[str, ...]:
    """The columns that are named one by one, without those whose change is harmless."""
    columns: list[str] = []
    while tokens := s.name():
        if not any(s.at(phrase) for phrase in harmless):
            columns.append(tokens[0].text)
        while s.peek() is not None and not s.at_type(TokenType.COMMA):
            if not s.skip_group():
                s.index += 1
        s.accept_type(TokenType.COMMA)
    return tuple(columns)


def _skip_ctes(s: Scanner) -> None:
    """Skip `WITH a AS (…), b (x) AS (…)`, so that the scanner is at the verb after it."""
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


def _multi_insert(s: Scanner) -> tuple[Target, ...]:
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


def _execute_immediate(s: Scanner) -> Other:
    literal = s.peek()
    if literal is None or not s.accept_type(TokenType.STRING) or (s.peek() and not s.at("INTO") and not s.at("USING")):
        return Other(s.text, "EXECUTE")  # a computed statement, which only Spark knows
    pieces = [p for p in pieces_of(literal.text) if not p.is_empty]
    scanner = Scanner(literal.text, pieces[0]) if len(pieces) == 1 else None
    if scanner is None or own_statement(scanner) is not None:
        return Other(s.text, "EXECUTE")
    inner = classify(scanner)
    position = s.span(literal, literal)
    return replace(inner, text=s.text, targets=tuple(replace(t, position=position) for t in inner.targets))


def _script(s: Scanner) -> Other:
    """`BEGIN … END`: the targets of all statements inside, and the strongest of their effects."""
    tokens = s.piece.tokens
    found: list[Other] = []
    for index in range(1, len(tokens)):
        before = tokens[index - 1]
        if before.token_type is not TokenType.SEMICOLON and word_of(before) not in _BEFORE_SCRIPT_STATEMENTS:
            continue
        stop = next((i for i in range(index, len(tokens)) if tokens[i].token_type is TokenType.SEMICOLON), len(tokens))
        inner = Scanner(s.text, Piece(tokens[index:stop], s.piece.start, s.piece.stop))
        is_block = word_of(tokens[index]) in {"", "BEGIN", "END", "IF", "WHILE", "FOR", "CASE"}
        if not is_block and not inner.at("UPDATE SET"):  # the latter is a branch of a MERGE
            found.append(classify(inner))
    effect = next((e for e in _STRONGEST_FIRST if any(o.effect is e for o in found)), Effect.READ)
    changed = [o for o in found if o.effect not in {Effect.READ, Effect.SESSION}]
    return Other(s.text, "BEGIN", "SCRIPT", tuple(t for o in changed for t in o.targets), effect)
