"""What the parts of the front end hand to each other while one text is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sqlglot import exp

from millstream.ops import Relation
from millstream.sql.scope import Namer, Visible
from millstream.sql.sources import Analyzer, Sources


@dataclass(frozen=True, slots=True)
class Lowered:
    """A query as an operator tree and the names its columns have outside."""

    relation: Relation
    names: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[Visible, ...]:
        """The columns as a query that reads this sees them."""
        return tuple(Visible(n, c) for n, c in zip(self.names, self.relation.schema, strict=True))


Ctes = Mapping[str, Lowered]


@dataclass(frozen=True)
class Context:
    """A text and the world it is lowered in; a view's text gets a context of its own.

    `views` are those met so far: like a CTE, a view that is read twice is one relation.
    """

    sql: str
    sources: Sources
    analyzer: Analyzer
    namer: Namer = field(default_factory=Namer)
    notices: list[str] = field(default_factory=list)
    views: dict[str, Lowered] = field(default_factory=dict)
    depth: int = 0

    def inside_view(self, text: str) -> Context:
        """The context of a view's text: names stay unique, positions point into that text."""
        return replace(self, sql=text, depth=self.depth + 1)


class LowersQueries(Protocol):
    """Turns a query, wherever it stands, into operators."""

    @property
    def context(self) -> Context:
        """What is known of the text."""

    def query(self, node: exp.Expr, ctes: Ctes) -> Lowered:
        """Lower a query of the text."""

    def view(self, text: str) -> Lowered:
        """Lower a view."""
