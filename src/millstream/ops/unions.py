"""The operators that combine the rows of their inputs: UNION ALL, and the recursion over a UNION."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from millstream.ops.known import Known
from millstream.ops.operator import WEIGHT_COLUMN, Column, Opaque, Operator, require_unique

if TYPE_CHECKING:
    from sqlglot import exp

    from millstream.ops.relations import Relation


@dataclass(frozen=True, eq=False)
class UnionAll(Operator):
    """The rows of all inputs; columns match by position, the names are those of the first input."""

    inputs: tuple[Relation, ...]

    def __post_init__(self) -> None:
        if len({len(i.columns) for i in self.inputs}) != 1:
            raise ValueError("the inputs of a union differ in their number of columns")
        if len({i.is_weighted for i in self.inputs}) != 1:
            raise ValueError("either all inputs of a union are weighted or none is")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        first = self.inputs[0]
        return (*first.columns, WEIGHT_COLUMN) if first.is_weighted else first.columns

    @property
    def label(self) -> str:
        return "union all"

    @property
    def line(self) -> str:
        return "union all"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return ()

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return all(i.is_small(steps) for i in self.inputs)

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known()


@dataclass(frozen=True, eq=False)
class Recursion(Opaque):
    """The rows of `base`, of `step` over these, of `step` over the result, and so on: `base UNION [ALL] step`.

    The step reads the rows found last through a scan of the source `reference`, whose columns have the names of
    `output`. It is linear in them: its result for several rows is the union of its results for each row. With
    `distinct` (UNION), a row counts once, and the recursion ends when it finds no new row.
    """

    base: Relation
    step: Relation
    reference: str
    output: tuple[Column, ...]
    distinct: bool

    def __post_init__(self) -> None:
        require_unique(self.output)
        if {len(self.base.columns), len(self.step.columns)} != {len(self.output)}:
            raise ValueError("the branches of a recursion differ in their number of columns")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output

    @property
    def label(self) -> str:
        return f"recursion, {'UNION' if self.distinct else 'UNION ALL'}"

    @property
    def line(self) -> str:
        return f"recursion {self.reference}, {'union' if self.distinct else 'union all'}"

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return ()

    @property
    def is_monotone(self) -> bool:
        return True

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return False

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known()


Union = UnionAll | Recursion

__all__ = ["Recursion", "UnionAll"]
