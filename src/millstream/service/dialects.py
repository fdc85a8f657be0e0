"""The dialect of a defining query: as Spark reads it, or PostgreSQL's, translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

from millstream.errors import Code, MillstreamError, Position
from millstream.lake import Compiled

_ANSI = "spark.sql.ansi.enabled"


class Dialect(StrEnum):
    """What a query can be written in."""

    SPARK = "spark"
    POSTGRES = "postgres"


def parse_dialect(name: str | None) -> Dialect:
    """A dialect by its name; Spark's unless one is given.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    try:
        return Dialect((name or Dialect.SPARK).lower())
    except ValueError as e:
        raise MillstreamError(
            Code.UNSUPPORTED_SQL, f"the dialect {name!r} is not available", hint=f"use {' or '.join(Dialect)}"
        ) from e


def require_ansi(semantics: Mapping[str, str]) -> None:
    """Translations count on Spark to fail where PostgreSQL fails, instead of giving NULL."""
    if semantics.get(_ANSI, "true").lower() != "true":
        raise MillstreamError(
            Code.UNSUPPORTED_SQL, f"the postgres dialect needs {_ANSI}", hint=f"SET {_ANSI} = true, and create it again"
        )


def as_written(compiled: Compiled, original: str, notices: Sequence[str]) -> Compiled:
    """A compiled translation, with the text it was made from."""
    return replace(
        compiled,
        original=original,
        dialect=Dialect.POSTGRES.value,
        notices=(*notices, *(n for n in compiled.notices if n not in notices)),
        translation_notices=tuple(notices),
    )


@contextmanager
def pointing_into(original: str, *translated: str) -> Iterator[None]:
    """Errors about a translated text: they show the user's own, and point into it where the word is there once."""
    try:
        yield
    except MillstreamError as error:
        if error.sql is None or error.sql not in translated:
            raise
        raise MillstreamError(
            error.code,
            error.message,
            hint=error.hint,
            position=_same_word(error.position, error.sql, original),
            sql=original,
        ) from error


def _same_word(position: Position | None, translated: str, original: str) -> Position | None:
    if position is None:
        return None
    line = translated.split("\n")[position.line - 1]
    word = line[position.column - 1 : position.column - 1 + position.length].strip("`").lower()
    if not word or original.lower().count(word) != 1:
        return None
    start = original.lower().index(word)
    before = original[:start]
    return Position(before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1, len(word))
