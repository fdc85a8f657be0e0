"""What the parts of the front end pass to each other while one text is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sqlglot import exp

from millstream.ops import Aggregate, Column, Item, Project, Relation
from millstream.ops.expressions import col, keep
from millstream.ops.relations import referenced
from millstream.sql.lowering.scope import Namer, Scope, Visible
from millstream.sql.sources import Analyzer, Sources

MadeNames = Mapping[tuple[int, int], tuple[str, ...]]
"""The columns of a SELECT in the text, by its place, if Spark generated names for them."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A query as an operator tree and the names its columns have outside.

    Args:
        relation: the named columns, and after them those only `conditions` need.
        conditions: for a correlated subquery, the conditions that match its rows with a row of the outer query.
        empty: for a subquery of aggregates without GROUP BY, which has one row for each outer row: its values for an
            outer row that none of its rows match.
        is_single: whether there is at most one row, or at most one for each outer row.
        open_results: the constructs whose result SQL leaves open and the operators fix.
    """

    relation: Relation
    names: tuple[str, ...]
    notices: tuple[str, ...] = ()
    conditions: tuple[exp.Expr, ...] = ()
    empty: tuple[exp.Expr, ...] | None = None
    is_single: bool = False
    open_results: tuple[str, ...] = ()
    made_names: MadeNames = field(default_factory=dict)

    @property
    def visible(self) -> tuple[Visible, ...]:
        """The columns as a query that reads this sees them."""
        return tuple(Visible(n, c) for n, c in zip(self.names, self.relation.schema, strict=False))

    @property
    def outputs(self) -> tuple[Column, ...]:
        """The named columns."""
        return self.relation.schema[: len(self.names)]

    @property
    def keys(self) -> tuple[Column, ...]:
        """The columns that match its rows with the rows of the outer query."""
        names = {name for condition in self.conditions for name in referenced(condition)}
        return tuple(c for c in self.relation.schema if c.name in names)


Ctes = Mapping[str, Lowered]


class UncarriedError(Exception):
    """A subquery uses columns of the outer query where only its own columns are allowed."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)


@dataclass(frozen=True)
class Outer:
    """The outer query of a subquery, as the subquery sees it.

    A reference to it in a WHERE becomes a condition of the join with the subquery. Where that is not enough, e.g. in an
    aggregate's argument, the distinct values of its columns are *carried* into the subquery: joined to its FROM
    clause, and kept in every row to match it with the outer rows.

    Args:
        needs_keys: every condition must be an equality with a column of the subquery.
        takes_empty: the caller handles `Lowered.empty`; otherwise aggregates over no rows must produce a row.
        carried: the columns carried in, by their names in the outer query.
    """

    scope: Scope
    relation: Relation
    needs_keys: bool = False
    takes_empty: bool = True
    carried: Mapping[str, Column] = field(default_factory=dict)

    def carrying(self, names: Iterable[str], namer: Namer) -> Outer:
        """The same outer query with some columns carried in."""
        columns = [c for c in self.relation.columns if c.name in set(names)]
        return replace(self, carried={c.name: Column(namer.fresh(c.name), c.type) for c in columns})

    @property
    def inside(self) -> Scope:
        """The outer names as the subquery binds them."""
        return self.scope.over({name: column.name for name, column in self.carried.items()})

    def domain(self) -> Relation:
        """The distinct values of the carried columns."""
        items = tuple(Item(col(name), column) for name, column in self.carried.items())
        return Aggregate(Project(self.relation, items), keep(self.carried.values()), ())


@dataclass(frozen=True)
class Context:
    """A text and what lowering it needs; a view's text gets a separate context.

    `views` holds the views lowered so far: like a CTE, a view that is read twice is one relation.
    """

    sql: str
    sources: Sources
    analyzer: Analyzer
    namer: Namer = field(default_factory=Namer)
    notices: list[str] = field(default_factory=list)
    open_results: list[str] = field(default_factory=list)
    views: dict[str, Lowered] = field(default_factory=dict)
    made_names: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    depth: int = 0

    def close_result(self, construct: str, how: str) -> None:
        """Record that a construct's result, which SQL leaves open, has been fixed, and notify the user how."""
        self.open_results.append(construct)
        self.notices.append(f"{construct} has no fixed result: {how}")

    def inside_view(self, text: str) -> Context:
        """The context of a view's text: names stay unique, positions point into that text."""
        return replace(self, sql=text, made_names={}, depth=self.depth + 1)


class LowersQueries(Protocol):
    """Lowers queries, at any place in the text, to operators."""

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""

    def query(self, node: exp.Expr, ctes: Ctes, outer: Outer | None = None) -> Lowered:
        """Lower a query of the text; a subquery may refer to the outer query."""

    def view(self, text: str) -> Lowered:
        """Lower a view."""
