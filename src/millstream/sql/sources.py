"""What the front end asks of the outside: which tables exist, and what Spark says of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from millstream.ops import Column


@dataclass(frozen=True, slots=True)
class Source:
    """A table or stream table that a query may read: its identity in frontiers, its columns, and why its changes cannot
    be read, if so.
    """

    id: str
    columns: tuple[Column, ...]
    obstacle: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A view of the lake: its text stands in for its name."""

    id: str
    text: str


class Sources(Protocol):
    """Looks up the tables and views of a lake."""

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The object of that one- or two-part name."""


class Analyzer(Protocol):
    """The type oracle: analyses a self-contained query without running it."""

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        """The names and types of the query's columns."""

    def names(self, text: str) -> tuple[str, ...] | None:
        """What Spark calls the columns of a self-contained query, given as text; None where it cannot be told."""

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expression]) -> bool:
        """Whether the expressions over the query's columns are deterministic functions of one row."""
