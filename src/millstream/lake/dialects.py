"""The dialect of a defining query: Spark SQL, or PostgreSQL's SQL, which is translated."""

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
    """The dialects in which a query can be written."""

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
    """PostgreSQL's dialect if all base tables of a query are tables of attached databases, otherwise Spark's.

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


def _is_of_postgres(parts: Sequence[str], lake: Lake, above: frozenset[str] = frozenset()) -> bool:
    """Whether all base tables of a relation are; `above` are the stream tables through which it was reached."""
    found = lake.find(parts)
    if found is None:
        return False
    if isinstance(found, View):
        return all(_is_of_postgres(reference.parts, lake, above) for reference in table_references(found.text))
    name = TableName.parse(found.id)
    table = lake.catalog.find(name)
    if table is None:
        return name.database is not None
    above = above | {found.id}
    read = [d for d in table.definition.dependencies if d.kind in (SourceKind.TABLE, SourceKind.STREAM_TABLE)]
    return bool(read) and all(
        d.name in above or _is_of_postgres(split_name(d.name), lake, above)
        if d.kind is SourceKind.STREAM_TABLE
        else TableName.parse(d.name).database is not None
        for d in read
    )


@contextmanager
def naming_the_dialect() -> Iterator[None]:
    """Add a hint to errors about a query whose dialect was not named: it may be meant as Spark SQL."""
    try:
        yield
    except MillstreamError as error:
        if error.code not in (Code.SYNTAX_ERROR, Code.UNSUPPORTED_SQL):
            raise
        why = (
            "all its tables are in PostgreSQL, so it was read as PostgreSQL SQL; for Spark SQL use the dialect 'spark'"
        )
        hint = f"{error.hint}; {why}" if error.hint else why
        raise MillstreamError(
            error.code, error.message, hint=hint, position=error.position, sql=error.sql
        ) from error.__cause__


def require_ansi(semantics: Mapping[str, str]) -> None:
    """Require ANSI mode: translations rely on Spark to fail where PostgreSQL fails, instead of returning NULL."""
    if semantics.get(_ANSI, "true").lower() != "true":
        raise MillstreamError(
            Code.UNSUPPORTED_SQL, f"the postgres dialect needs {_ANSI}", hint=f"SET {_ANSI} = true, and try again"
        )


def as_written(compiled: Compiled, original: str, notices: Sequence[str]) -> Compiled:
    """A compiled translation, with the text that was translated."""
    return replace(
        compiled,
        original=original,
        dialect=Dialect.POSTGRES.value,
        notices=(*notices, *(n for n in compiled.notices if n not in notices)),
        translation_notices=tuple(notices),
    )


@contextmanager
def pointing_into(original: str, *translated: str) -> Iterator[None]:
    """Make errors about a translated text show the user's text, with a position if the word occurs in it once."""
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
