"""The operators that compute from several rows of one input: from groups and from partitions."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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
    texts_of,
)

if TYPE_CHECKING:
    from sqlglot import exp

    from millstream.ops.relations import Relation


@dataclass(frozen=True, eq=False)
class Aggregate(Operator):
    """One row per distinct value of the keys; without keys exactly one row. DISTINCT has keys but no calls."""

    input: Relation
    keys: tuple[Item, ...]
    calls: tuple[Item, ...]

    def __post_init__(self) -> None:
        require_unique(self.schema)
        for item in (*self.keys, *self.calls):
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return tuple(item.column for item in (*self.keys, *self.calls))

    @property
    def label(self) -> str:
        return f"aggregate by {', '.join(i.column.name for i in self.keys) or 'all rows'}"

    @property
    def line(self) -> str:
        keys = texts_of(self.keys) or "all rows"
        return f"aggregate by {keys}" + (f": {texts_of(self.calls)}" if self.calls else "")

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return tuple(i.expression for i in self.keys)

    @property
    def is_monotone(self) -> bool:
        return False

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.input.is_small(steps)

    def known(self, sources: Mapping[str, Known]) -> Known:
        kept = self.input.known(sources).renamed(kept_names(self.keys))
        return Known(frozenset(i.column.name for i in self.keys), kept.not_null)

    def needs(self, names: Set[str]) -> Set[str]:
        return referenced_by(i.expression for i in (*self.keys, *self._used(names)))

    def pruned(self, names: Set[str], inputs: tuple[Relation, ...]) -> Relation:
        return Aggregate(inputs[0], self.keys, self._used(names))

    def _used(self, names: Set[str]) -> tuple[Item, ...]:
        return tuple(i for i in self.calls if i.column.name in names)


@dataclass(frozen=True, eq=False)
class Window(Opaque):
    """The rows of the input, each with values computed from the rows of its partition.

    Every call is a window expression whose PARTITION BY is `partition`: columns of the input.
    """

    input: Relation
    partition: tuple[str, ...]
    calls: tuple[Item, ...]

    def __post_init__(self) -> None:
        require_unique(self.schema)
        self._require(set(self.partition), "partition")
        for item in self.calls:
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return (*self.input.schema, *(item.column for item in self.calls))

    @property
    def label(self) -> str:
        return f"window by {', '.join(self.partition) or 'all rows'}"

    @property
    def line(self) -> str:
        return f"{self.label}: {texts_of(self.calls)}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return ()

    @property
    def is_monotone(self) -> bool:
        return False

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.input.is_small(steps)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return self.input.known(sources)

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced_by(i.expression for i in self._used(names))

    def pruned(self, names: Set[str], inputs: tuple[Relation, ...]) -> Relation:
        used = self._used(names)
        return Window(inputs[0], self.partition, used) if used else inputs[0]

    def _used(self, names: Set[str]) -> tuple[Item, ...]:
        return tuple(i for i in self.calls if i.column.name in names)


Grouping = Aggregate | Window

__all__ = ["Aggregate", "Grouping", "Window"]
