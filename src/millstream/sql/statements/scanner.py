"""A text as words: split at semicolons, scanned from left to right, never printed again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, TypeVar

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.statements.model import StatementText

T = TypeVar("T")

_OPENED = {"`": ("quoted name", "`"), "/": ("comment", "*/"), "$": ("string", "$$")}
_BLANKS_AND_COMMENTS = re.compile(r"(?:\s|--[^\r\n]*|/\*.*?\*/)*", re.DOTALL)


class _Words(Spark.Tokenizer):
    """Spark's lexical rules without keywords: each word is one token, never merged with its neighbour."""

    KEYWORDS: ClassVar[dict[str, TokenType]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()
    RAW_STRINGS: ClassVar[list[str | tuple[str, str]]] = [*Spark.Tokenizer.RAW_STRINGS, ("$$", "$$")]


@dataclass(frozen=True, slots=True)
class Piece:
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


def pieces_of(text: str) -> Iterator[Piece]:
    """The statements between top-level semicolons, empty ones included."""
    tokens, broken_at = _tokenize(text)
    first = start = index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.token_type is TokenType.SEMICOLON:
            yield Piece(tokens[first:index], start, token.start)
            first, start = index + 1, token.end + 1
        elif begins_script(tokens, first, index):
            index = _script_end(tokens, index)
        index += 1
    yield Piece(tokens[first:], start, len(text), broken_at)


def begins_script(tokens: Sequence[Token], first: int, index: int) -> bool:
    """Whether the token at `index` is the BEGIN, perhaps after a label, that opens the statement at `first`."""
    if index + 1 >= len(tokens) or word_of(tokens[index]) != "BEGIN" or word_of(tokens[index + 1]) == "TRANSACTION":
        return False
    return index == first or (index == first + 2 and tokens[first + 1].token_type is TokenType.COLON)


def _script_end(tokens: Sequence[Token], index: int) -> int:
    """The index of the END that closes the BEGIN at `index`; `END IF`, `END LOOP` and the like are skipped."""
    depth = 0
    for at in range(index, len(tokens)):
        word = word_of(tokens[at])
        before = word_of(tokens[at - 1]) if at else ""
        after = word_of(tokens[at + 1]) if at + 1 < len(tokens) else ""
        depth += word == "BEGIN" or (word == "CASE" and before != "END")
        depth -= word == "END" and after not in {"IF", "WHILE", "FOR", "LOOP", "REPEAT"}
        if depth == 0:
            return at
    return len(tokens)


def stripped(text: str, start: int, stop: int) -> StatementText:
    """A slice of a text without the blanks around it."""
    piece = text[start:stop]
    return StatementText(piece.strip(), start + len(piece) - len(piece.lstrip()))


def word_of(token: Token | None) -> str:
    """The unquoted word in upper case; empty for everything else."""
    return token.text.upper() if token is not None and token.token_type is TokenType.VAR else ""


class Scanner:
    """A cursor over the tokens of one statement; its errors have a position."""

    def __init__(self, text: str, piece: Piece) -> None:
        self.text = text
        self.piece = piece
        self.index = 0
        self.form = ""  # the syntax of the statement that was recognised, for the hint

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.index + ahead
        return self.piece.tokens[index] if index < len(self.piece.tokens) else None

    def at(self, phrase: str) -> bool:
        """Whether these words come next, unquoted."""
        return all(word_of(self.peek(i)) == word for i, word in enumerate(phrase.split()))

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

    def expect(self, phrase: str, expected: str = "") -> Scanner:
        if not self.accept(phrase):
            self.fail(expected or phrase)
        return self

    def last(self, value: T) -> T:
        """The value, after which the statement must end."""
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
        """The tokens of the dotted name that begins here; none, without moving, if there is no name."""
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


def schemas_in(text: str) -> Iterator[tuple[str, int]]:
    """The words before a dot or after SCHEMA, each with its offset: schemas, and also tables and aliases.

    >>> list(schemas_in("SELECT 'a.b' FROM spark_catalog.`x`.t -- c.d"))
    [('x', 32)]
    """
    tokens, _ = _tokenize(text)
    for index, token in enumerate(tokens[:-1]):
        following, first, second = tokens[index + 1], tokens[index - 1 : index], tokens[index - 2 : index - 1]
        is_first = not first or first[0].token_type is not TokenType.DOT
        is_in_catalog = not is_first and bool(second) and second[0].text.lower() == "spark_catalog"
        if following.token_type is TokenType.DOT and (is_first or is_in_catalog):
            if token.text.lower() != "spark_catalog":
                yield token.text, token.start
        elif token.text.upper() in ("SCHEMA", "DATABASE", "NAMESPACE", "EXISTS", "IN"):
            yield following.text, following.start


def position_at(text: str, offset: int, length: int = 1) -> Position:
    """The line and column of a character, counted as `MillstreamError` underlines them."""
    lines = (text[:offset] + "x").splitlines()
    return Position(len(lines), len(lines[-1]), length)
