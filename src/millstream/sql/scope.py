"""Names in force at a place of a query, and fresh names for the columns of operators."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sqlglot import exp

from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.ops import Column
from millstream.ops.expressions import col
from millstream.sql.parse import position_of


class Namer:
    """Hands out column names that are unique within one query, whatever their case.

    They are plain, so that they can be the column names of a stored table, which every reader of Delta takes.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, wanted: str) -> str:
        """`wanted` in plain characters, with a number behind it where that is taken."""
        wanted = re.sub(r"\W", "_", wanted)
        wanted = "u" + wanted if wanted.lower().startswith(naming.RESERVED_PREFIX) else wanted
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
    """The FROM items of one SELECT in order, and the aliases its SELECT list has defined so far."""

    sql: str
    items: dict[str, tuple[Visible, ...]] = field(default_factory=dict)
    aliases: dict[str, exp.Expression] = field(default_factory=dict)

    def add(self, alias: str, columns: tuple[Visible, ...], node: exp.Expression) -> None:
        """Bring a FROM item into scope."""
        if alias.lower() in self.items:
            raise MillstreamError(
                Code.QUERY_INVALID,
                f"two tables are called {alias}",
                position=position_of(node),
                sql=self.sql,
                hint="give one of them an alias",
            )
        self.items[alias.lower()] = columns

    def all_columns(self) -> tuple[Visible, ...]:
        """What `*` stands for."""
        return tuple(v for columns in self.items.values() for v in columns)

    def bind(self, expression: exp.Expression) -> exp.Expression:
        """Replace every column reference by the operators' name of the column."""

        def resolve(node: exp.Expression) -> exp.Expression:
            return self._resolve(node) if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) else node

        return expression.copy().transform(resolve)

    def _resolve(self, node: exp.Column) -> exp.Expression:
        parts = [part.name for part in node.parts]
        for split in range(len(parts) - 1, -1, -1):
            # the longest prefix that names a table wins; what is left over are fields of a struct
            found = self._find(parts[:split], parts[split])
            if found is not None:
                result: exp.Expression = found
                for name in parts[split + 1 :]:
                    result = exp.Dot(this=result, expression=exp.to_identifier(name, quoted=True))
                return result
        raise self._unknown(node)

    def _find(self, qualifier: list[str], name: str) -> exp.Expression | None:
        if qualifier:
            columns = self.items.get(qualifier[-1].lower(), ())
        else:
            columns = self.all_columns()
        matches = [v for v in columns if v.name.lower() == name.lower()]
        if len(matches) > 1 and not qualifier:
            raise MillstreamError(
                Code.QUERY_INVALID, f"the column {name} is ambiguous", sql=self.sql, hint="write table.column"
            )
        if matches:
            return col(matches[0].column.name)
        if not qualifier and name.lower() in self.aliases:
            alias = self.aliases[name.lower()].copy()
            return alias if isinstance(alias, exp.Column | exp.Literal) else exp.paren(alias, copy=False)
        return None

    def _unknown(self, node: exp.Column) -> MillstreamError:
        known = ", ".join(v.name for v in self.all_columns()) or "none"
        return MillstreamError(
            Code.UNKNOWN_COLUMN,
            f"there is no column {node.sql(dialect='spark')}",
            position=position_of(node),
            sql=self.sql,
            hint=f"the columns are: {known}",
        )
