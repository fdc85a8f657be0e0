"""The joins. In all of them, a condition that is NULL joins nothing."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from millstream.ops.known import Known
from millstream.ops.operator import (
    WEIGHT_COLUMN,
    Column,
    Operator,
    referenced,
    referenced_by,
    require_unique,
    text_of,
)

if TYPE_CHECKING:
    from sqlglot import exp

    from millstream.ops.relations import Relation

OuterKind = Literal["left", "full"]


@dataclass(frozen=True, eq=False)
class InnerJoin(Operator):
    """The n-ary join of the inputs, in join order, on all conditions.

    With `small_first`, the first input, and so each intermediate result, is expected to be small enough to be sent to
    every task, as in a join that starts from a delta.
    """

    inputs: tuple[Relation, ...]
    conditions: tuple[exp.Expr, ...]
    small_first: bool = False

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise ValueError("a join needs two inputs")
        require_unique(self.columns)
        for condition in self.conditions:
            self._require(referenced(condition), "condition")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        columns = tuple(c for i in self.inputs for c in i.columns)
        return (*columns, WEIGHT_COLUMN) if any(i.is_weighted for i in self.inputs) else columns

    @property
    def label(self) -> str:
        conditions = " AND ".join(c.sql(dialect="spark") for c in self.conditions)
        return f"inner join of {len(self.inputs)}" + (f" on {conditions}" if conditions else "")

    @property
    def line(self) -> str:
        kind = "join, small first" if self.small_first else "join"
        return f"{kind}, on {' AND '.join(map(text_of, self.conditions))}" if self.conditions else kind

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return self.conditions

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return any(i.is_small(steps) for i in self.inputs)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known.joined(i.known(sources) for i in self.inputs)

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced_by(self.conditions)


@dataclass(frozen=True, eq=False)
class OuterJoin(Operator):
    """A LEFT or FULL outer join (a RIGHT join is a LEFT join with its inputs swapped).

    Only the left input may be weighted: then the right one is looked up for each row of a delta. With `small_right`,
    the right input is expected to be small enough to be sent to every task.
    """

    kind: OuterKind
    left: Relation
    right: Relation
    condition: exp.Expr
    small_right: bool = False

    def __post_init__(self) -> None:
        if self.right.is_weighted:
            raise ValueError("the right input of an outer join may not be weighted")
        require_unique(self.schema)
        self._require(referenced(self.condition), "condition")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        columns = (*self.left.columns, *self.right.columns)
        return (*columns, WEIGHT_COLUMN) if self.left.is_weighted else columns

    @property
    def label(self) -> str:
        return f"{self.kind} outer join on {self.condition.sql(dialect='spark')}"

    @property
    def line(self) -> str:
        return f"{self.kind} join, on {text_of(self.condition)}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return (self.condition,)

    @property
    def is_monotone(self) -> bool:
        return False

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.left.is_small(steps) and (self.kind == "left" or self.right.is_small(steps))

    def known(self, sources: Mapping[str, Known]) -> Known:
        if self.kind == "full":
            return Known()
        left, right = self.left.known(sources), self.right.known(sources)
        return Known(Known.joined([left, right]).key, left.not_null)

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced(self.condition)


@dataclass(frozen=True, eq=False)
class _FilteringJoin(Operator):
    """Keeps or drops rows of the left input.

    The right input may be a Z-set, in which a row of any weight is a partner. With `small_right`, it is expected to be
    small enough to be sent to every task.
    """

    left: Relation
    right: Relation
    condition: exp.Expr
    small_right: bool = False

    def __post_init__(self) -> None:
        self._require(referenced(self.condition), "condition")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.left.schema

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return (self.condition,)

    @property
    def is_monotone(self) -> bool:
        return False

    def known(self, sources: Mapping[str, Known]) -> Known:
        return self.left.known(sources)

    def needs(self, names: Set[str]) -> Set[str]:
        return names | referenced(self.condition)


class SemiJoin(_FilteringJoin):
    """The rows of the left input that have a partner in the right one."""

    @property
    def label(self) -> str:
        return f"rows with a partner on {self.condition.sql(dialect='spark')}"

    @property
    def line(self) -> str:
        return f"semi join, on {text_of(self.condition)}"

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.left.is_small(steps) or self.right.is_small(steps)


class AntiJoin(_FilteringJoin):
    """The rows of the left input that have no partner in the right one."""

    @property
    def label(self) -> str:
        return f"rows without a partner on {self.condition.sql(dialect='spark')}"

    @property
    def line(self) -> str:
        return f"anti join, on {text_of(self.condition)}"

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.left.is_small(steps)


Join = InnerJoin | OuterJoin | SemiJoin | AntiJoin

__all__ = ["AntiJoin", "InnerJoin", "Join", "OuterJoin", "SemiJoin"]
