"""What a rule needs to know of one accumulator.

Expressions speak of three sets of columns: an input row's (`argument`, `condition`), the stored ones (by `column.name`,
with `OLD` behind it where the stored value before the refresh is meant), and the group's change (`change_columns`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Column, Item
from millstream.ops.expressions import is_not_null, when

OLD = "__ms_o"  # behind the name of a stored column: its value before the refresh


@dataclass(frozen=True)
class Accumulator(ABC):
    """One stored quantity of a group."""

    name: str
    argument: exp.Expression | None
    condition: exp.Expression | None

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns it adds to the stored row."""

    @abstractmethod
    def compute(self) -> tuple[Item, ...]:
        """Aggregates over plain input rows that give the stored columns; used to load and to recompute groups."""

    def prepare(self, keys: Sequence[exp.Expression]) -> tuple[Item, ...]:
        """Columns to add to each row of the delta before it is grouped."""
        return ()

    def prepare_compute(self, keys: Sequence[exp.Expression]) -> tuple[Item, ...]:
        """Columns to add to each plain input row before `recompute`."""
        return ()

    def recompute(self) -> tuple[Item, ...]:
        """Like `compute`, for the few groups that are recomputed, where more effort is worth it."""
        return self.compute()

    @abstractmethod
    def gather(self) -> tuple[Item, ...]:
        """Aggregates over the delta's rows: the change of the group."""

    @abstractmethod
    def merge(self) -> dict[str, exp.Expression]:
        """The new stored columns, from the old ones and the change; NULL where only recomputing tells."""

    def must_recompute(self) -> exp.Expression | None:
        """When the group has to be read again, over old columns and the change; None for never."""
        return None

    def applies(self) -> exp.Expression | None:
        """The condition under which an input row counts: FILTER, and the argument not NULL."""
        conditions = [c for c in (self.condition, is_not_null(self.argument) if self.argument else None) if c is not None]
        return exp.and_(*conditions, wrap=True) if conditions else None

    def where_it_applies(self, value: exp.Expression, otherwise: exp.Expression | None = None) -> exp.Expression:
        """`value` for rows that count, else `otherwise`."""
        condition = self.applies()
        return value.copy() if condition is None else when(condition, value, otherwise)
