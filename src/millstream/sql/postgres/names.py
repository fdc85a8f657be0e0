"""The names a query can use, with PostgreSQL's types.

Unquoted names are folded as PostgreSQL folds them; quoted names stay as they are. Spark ignores the case of both, so
names that differ only in case are replaced in Spark's query, or refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.naming import cut, fold
from millstream.sql.postgres.spark_builders import column as column_of
from millstream.sql.postgres.spark_builders import quoted_name
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import Type


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a table or query.

    Args:
        constant: the text of a literal that has no type yet.
    """

    name: str
    type: Type
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a FROM clause: its name there, and its columns.

    Args:
        is_scalar: a function that returns values, not rows: its name alone means the value.
        path: for a table without an alias, its schema and database, which may also qualify its columns.
        alias: its name in Spark's query, if that differs.
    """

    name: str
    columns: tuple[Output, ...]
    is_scalar: bool = False
    path: tuple[str, ...] = ()
    alias: str | None = None

    @property
    def shown(self) -> exp.Identifier:
        """Its name in Spark's query."""
        return quoted_name(self.alias or self.name)

    def find(self, column: str) -> Output | None:
        """A column by its name."""
        return next((c for c in self.columns if c.name == column), None)

    def has_twin(self, column: str) -> bool:
        """Whether another column has this name in another case, so that Spark cannot distinguish the two."""
        return sum(c.name.lower() == column.lower() for c in self.columns) > 1 and self.find(column) is not None

    def value(self, column: Output) -> Value:
        """A reference to a column."""
        return Value(column_of(column.name, self.shown), column.type)


@dataclass
class Scope:
    """What a SELECT reads, and what its outer queries read."""

    items: list[Item] = field(default_factory=list)
    outer: Scope | None = None
    shared: dict[str, Value] = field(default_factory=dict)
    """Columns that joins USING have merged, by name, those of the last join first."""
    merged: set[tuple[str, str]] = field(default_factory=set)
    """The item and column of each merged column. These are found by their qualified names only."""
    ctes: Mapping[str, tuple[Output, ...]] = field(default_factory=dict)
    """The queries of WITH that can be read here."""
    is_correlated: bool = False
    """Whether a name here, or in a query inside, refers to an outer query."""

    def alias_for(self, name: str) -> str | None:
        """Another name for an item in Spark's query, if an item here or further out has its name in another case."""
        scope: Scope | None = self
        while scope is not None:
            if any(item.name != name and item.name.lower() == name.lower() for item in scope.items):
                return f"__ms_{hashlib.sha256(name.encode()).hexdigest()[:12]}"
            scope = scope.outer
        return None

    def unqualified(self, items: Sequence[Item] | None = None) -> list[tuple[str, Value]]:
        """The columns that `*` or a bare name can refer to, in the order of `*`; of all items, or of some."""
        rest = [
            (c.name, i.value(c))
            for i in (self.items if items is None else items)
            for c in i.columns
            if (i.name, c.name) not in self.merged
        ]
        return [*self.shared.items(), *rest]

    def candidates(self, column: str, table: str | None, path: Sequence[str] = ()) -> Iterator[tuple[Item, Output]]:
        """Columns of that name in this SELECT; `path` is the qualifier before the table's name."""
        for item in self.items:
            if table is not None and item.name != table:
                continue
            if path and item.path[-len(path) :] != tuple(path):
                continue
            found = item.find(column)
            if found is not None:
                yield item, found


def folded(node: exp.Expr | None) -> str:
    """A name as PostgreSQL keeps it.

    >>> folded(exp.to_identifier("Total")), folded(exp.to_identifier("Total", quoted=True))
    ('total', 'Total')
    """
    if isinstance(node, exp.Identifier):
        return cut(str(node.this) if node.args.get("quoted") else fold(str(node.this)))
    return fold(node.name) if node is not None else ""
