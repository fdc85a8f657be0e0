"""The names visible at a place of a query, and fresh names for the columns of operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.ops import Column
from millstream.ops.expressions import col, wrapped
from millstream.sql.parse import place_of, position_of
from millstream.sql.refusals.unsupported import invalid


class Namer:
    """Generates column names that are unique within one query, ignoring case.

    They are plain, so that they can be column names of a stored table that every Delta reader accepts.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, wanted: str) -> str:
        """`wanted` in plain characters, followed by a number if that is taken."""
        wanted = re.sub(r"\W", "_", wanted)
        # rules append suffixes to names, e.g. for the old value, that start like a reserved name
        wanted = re.sub(naming.RESERVED_PREFIX, "_ms_", wanted, flags=re.IGNORECASE)
        name, number = wanted, 1
        while name.lower() in self._used:
            number += 1
            name = f"{wanted}_{number}"
        self._used.add(name.lower())
        return name


@dataclass(frozen=True, slots=True)
class Visible:
    """A column as the query sees it (`name`) and as the operators call it (`column`)."""

    name: str
    column: Column


@dataclass
class Scope:
    """What the expressions of one SELECT may refer to.

    Args:
        sql: the text, for errors.
        tables: the columns of each FROM item, by its alias.
        columns: the columns of `*`, to which a name without a table may refer; a column that USING joined counts once.
        aliases: the aliases the SELECT list has defined so far.
        outer: for a subquery, the scope of the outer query: its columns are visible unless one here has the same name.
    """

    sql: str
    tables: dict[str, tuple[Visible, ...]] = field(default_factory=dict)
    columns: list[Visible] = field(default_factory=list)
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    outer: Scope | None = None

    def add(self, alias: str, columns: Iterable[Visible], node: exp.Expr) -> None:
        """Bring a FROM item into scope."""
        if alias.lower() in self.tables:
            raise invalid(f"two tables are called {alias}", node, self.sql, "give one of them an alias")
        self.tables[alias.lower()] = tuple(columns)
        self.columns += self.tables[alias.lower()]

    def absorb(self, inner: Scope, node: exp.Expr) -> None:
        """Bring the FROM items of a join in parentheses into scope."""
        if taken := self.tables.keys() & inner.tables.keys():
            raise invalid(f"two tables are called {min(taken)}", node, self.sql, "give one of them an alias")
        self.tables |= inner.tables
        self.columns += inner.columns

    def over(self, columns: Mapping[str, str]) -> Scope:
        """The same names, for operators' columns of which some have been renamed."""

        def moved(visible: Visible) -> Visible:
            name = columns.get(visible.column.name, visible.column.name)
            return Visible(visible.name, Column(name, visible.column.type))

        tables = {alias: tuple(map(moved, visible)) for alias, visible in self.tables.items()}
        outer = self.outer.over(columns) if self.outer is not None else None
        return replace(self, tables=tables, columns=list(map(moved, self.columns)), aliases={}, outer=outer)

    def bind(self, expression: exp.Expr) -> exp.Expr:
        """Replace every column reference by the operators' name of the column, which keeps the reference's position."""

        def resolve(node: exp.Expr) -> exp.Expr:
            return self._resolve(node) if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) else node

        return expression.transform(resolve)

    def name_of(self, column: str) -> str:
        """The name that the query uses for a column of the operators."""
        known = (v for columns in (*self.tables.values(), self.columns) for v in columns)
        return next((v.name for v in known if v.column.name == column), column)

    def _resolve(self, node: exp.Column) -> exp.Expr:
        parts = [part.name for part in node.parts]
        for split in range(len(parts) - 1, -1, -1):
            # the longest prefix that names a table wins; the remaining parts are fields of a struct
            found = self._find(parts[:split], parts[split], node)
            if found is not None:
                for name in parts[split + 1 :]:
                    found = exp.Dot(this=found, expression=exp.to_identifier(name, quoted=True))
                return found
        if self.outer is not None:
            return self.outer._resolve(node)
        raise self._unknown(node)

    def _find(self, qualifier: Sequence[str], name: str, node: exp.Column) -> exp.Expr | None:
        columns = self.tables.get(qualifier[-1].lower(), ()) if qualifier else self.columns
        matches = [v for v in columns if v.name.lower() == name.lower()]
        if len(matches) > 1:
            raise invalid(f"the column {name} is ambiguous", node, self.sql, "write table.column, or name the columns")
        if matches:
            found = col(matches[0].column.name)
            found.this.meta.update(place_of(node))
            return found
        if not qualifier and name.lower() in self.aliases:
            return wrapped(self.aliases[name.lower()])
        return None

    def _unknown(self, node: exp.Column) -> MillstreamError:
        known = ", ".join(v.name for v in self.columns) or "none"
        return MillstreamError(
            Code.UNKNOWN_COLUMN,
            f"there is no column {node.sql(dialect='spark')}",
            position=position_of(node),
            sql=self.sql,
            hint=f"the columns are: {known}",
        )
