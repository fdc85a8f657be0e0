"""The dialect of a defining query: as Spark reads it, or PostgreSQL's, translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

from millstream.catalog.models import SourceKind
from millstream.errors import Code, MillstreamError, Position
from millstream.lake import Compiled, Lake
from millstream.naming import TableName, split_name
from millstream.sql.postgres.references import table_names
from millstream.sql.sources import View
from millstream.sql.text.table_exchange import table_references

_ANSI = "spark.sql.ansi.enabled"


class Dialect(StrEnum):
    """What a query can be written in."""

    SPARK = "spark"
    POSTGRES = "postgres"


def parse_dialect(name: str) -> Dialect:
    """A dialect by its name.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    try:
        return Dialect(name.lower())
    except ValueError as e:
        raise MillstreamError(
            Code.UNSUPPORTED_SQL, f"the dialect {name!r} is not available", hint=f"use {' or '.join(Dialect)}"
        ) from e


def default_dialect(query: str, lake: Lake) -> Dialect:
    """PostgreSQL's where every table a query reads, through stream tables and views, is one of PostgreSQL's.

    Raises:
        MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE.
    """
    if not lake.catalog.databases():
        return Dialect.SPARK
    try:
        names = table_names(query)
    except MillstreamError:
        return Dialect.SPARK
    is_postgres = bool(names) and all(_is_of_postgres(name, lake) for name in names)
    return Dialect.POSTGRES if is_postgres else Dialect.SPARK


def _is_of_postgres(parts: Sequence[str], lake: Lake) -> bool:
    found = lake.find(parts)
    if found is None:
        return False
    if isinstance(found, View):
        return all(_is_of_postgres(reference.parts, lake) for reference in table_references(found.text))
    name = TableName.parse(found.id)
    table = lake.catalog.find(name)
    if table is None:
        return name.database is not None
    read = [d for d in table.definition.dependencies if d.kind in (SourceKind.TABLE, SourceKind.STREAM_TABLE)]
    return bool(read) and all(
        _is_of_postgres(split_name(d.name), lake)
        if d.kind is SourceKind.STREAM_TABLE
        else TableName.parse(d.name).database is not None
        for d in read
    )


@contextmanager
def naming_the_dialect() -> Iterator[None]:
    """Errors about a query whose dialect was not given: perhaps it was meant to be Spark's."""
    try:
        yield
    except MillstreamError as error:
        if error.code not in (Code.SYNTAX_ERROR, Code.UNSUPPORTED_SQL):
            raise
        why = (
            "all its tables are PostgreSQL's, so it was read as PostgreSQL's SQL: give the dialect 'spark' if it is not"
        )
        hint = f"{error.hint}; {why}" if error.hint else why
        raise MillstreamError(
            error.code, error.message, hint=hint, position=error.position, sql=error.sql
        ) from error.__cause__


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
        if error.sql is None or error.sql == original or error.sql not in translated:
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
