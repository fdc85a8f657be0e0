"""What the front end needs from outside: which tables exist, and how Spark analyses a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from millstream.ops import Column


@dataclass(frozen=True, slots=True)
class NativeType:
    """What an attached database calls a column's type, or that of an array's elements, without modifiers.

    `has_free_scale`: a `numeric` in which PostgreSQL keeps the number of decimals of each value; Spark's type fixes it.
    """

    name: str
    is_enum: bool = False
    has_free_scale: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A table or stream table that a query may read: its identity in frontiers and its columns.

    `obstacle` says why its changes cannot be read. `unreadable` maps columns to the reason why no query may use them;
    they have the type void, so that the others can be used. `native_types` are those of an attached database.
    """

    id: str
    columns: tuple[Column, ...]
    obstacle: str | None = None
    unreadable: tuple[tuple[str, str], ...] = ()
    native_types: tuple[tuple[str, NativeType], ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A view of the lake, or of an attached database: its text replaces its name.

    For the latter, which Spark cannot analyse, `columns` and `native_types` are known, and `mark`: the fingerprint of
    the text in the database that `text` was translated from.
    """

    id: str
    text: str
    columns: tuple[Column, ...] | None = None
    native_types: tuple[tuple[str, NativeType], ...] = ()
    mark: str | None = None


class Sources(Protocol):
    """Looks up the tables and views of a lake."""

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The object with this name, which has one to three parts."""


class Analyzer(Protocol):
    """The type oracle: analyses a self-contained query without running it."""

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        """The names and types of the query's columns."""

    def names(self, text: str) -> tuple[str, ...] | None:
        """What Spark calls the columns of a self-contained query, given as text; None if it cannot analyse the text."""

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expression]) -> bool:
        """Whether the expressions over the query's columns are deterministic functions of one row."""
