"""The operators that treat each row of their input by itself."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from millstream import naming
from millstream.ops.known import Known
from millstream.ops.operator import (
    Column,
    Item,
    Opaque,
    Operator,
    kept_names,
    referenced,
    referenced_by,
    require_unique,
    text_of,
    texts_of,
)

if TYPE_CHECKING:
    from sqlglot import exp

    from millstream.ops.relations import Relation


@dataclass(frozen=True, eq=False)
class Filter(Operator):
    """The rows of the input for which the predicate is true; with `few`, only a few are expected."""

    input: Relation
    predicate: exp.Expr
    few: bool = False

    def __post_init__(self) -> None:
        self._require(referenced(self.predicate), "predicate")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.input.schema

    @property
    def label(self) -> str:
        return f"filter {self.predicate.sql(dialect='spark')}"

    @property
    def line(self) -> str:
        return f"filter {text_of(self.predicate)}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return (self.predicate,)

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.few or self.input.is_small(steps)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return self.input.known(sources)

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced(self.predicate)


@dataclass(frozen=True, eq=False)
class Project(Operator):
    """One row of computed columns per input row."""

    input: Relation
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        require_unique(self.schema)
        for item in self.items:
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return tuple(item.column for item in self.items)

    @property
    def label(self) -> str:
        return f"project {', '.join(c.name for c in self.schema)}"

    @property
    def line(self) -> str:
        return f"project {texts_of(self.items)}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return tuple(i.expression for i in self.items)

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.input.is_small(steps)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return self.input.known(sources).renamed(kept_names(self.items))

    def needs(self, names: Set[str]) -> Set[str]:
        return referenced_by(i.expression for i in self._used(names))

    def pruned(self, names: Set[str], inputs: tuple[Relation, ...]) -> Relation:
        return Project(inputs[0], self._used(names))

    def _used(self, names: Set[str]) -> tuple[Item, ...]:
        """The items in use; a relation has at least one column, so that its rows can be counted."""
        return tuple(i for i in self.items if i.column.name in names) or self.items[:1]


@dataclass(frozen=True, eq=False)
class Repeat(Opaque):
    """Each row of the input `count` times, numbered from 1 in the column `number`; not at all for zero or NULL."""

    input: Relation
    count: exp.Expr
    number: Column

    def __post_init__(self) -> None:
        require_unique(self.schema)
        self._require(referenced(self.count), "count")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return (*self.input.columns, self.number, *(c for c in self.input.schema if c.name == naming.WEIGHT))

    @property
    def label(self) -> str:
        return f"rows repeated {self.count.sql(dialect='spark')} times"

    @property
    def line(self) -> str:
        return f"repeat {text_of(self.count)} times, numbered {self.number.name}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return (self.count,)

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.input.is_small(steps)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known()

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced(self.count)


RowWise = Filter | Project | Repeat

__all__ = ["Filter", "Project", "Repeat", "RowWise"]
