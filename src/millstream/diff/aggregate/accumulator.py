"""What a rule needs to know about one accumulator.

Expressions refer to three sets of columns: those of an input row (`argument`, `condition`), the stored ones (by
`column.name`, with the suffix `OLD` for the value before the refresh), and the group's change (see `gather`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Column, Item
from millstream.ops.expressions import all_of, is_not_null, when

OLD = "__ms_o"  # suffix of a stored column's name: its value before the refresh


@dataclass(frozen=True)
class Accumulator(ABC):
    """One stored quantity of a group."""

    name: str
    argument: exp.Expr | None
    condition: exp.Expr | None

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns it adds to the stored row."""

    @abstractmethod
    def compute(self) -> tuple[Item, ...]:
        """Aggregates over plain input rows that compute the stored columns, to load and to recompute groups."""

    def prepare(self, keys: Sequence[exp.Expr]) -> tuple[Item, ...]:
        """Columns to add to each row of the delta before it is grouped."""
        return ()

    def prepare_compute(self, keys: Sequence[exp.Expr]) -> tuple[Item, ...]:
        """Columns to add to each plain input row before `recompute`."""
        return ()

    def recompute(self) -> tuple[Item, ...]:
        """Like `compute`, for the few groups that are recomputed, for which more effort pays off."""
        return self.compute()

    @abstractmethod
    def gather(self) -> tuple[Item, ...]:
        """Aggregates over the delta's rows: the change of the group."""

    @abstractmethod
    def merge(self) -> dict[str, exp.Expr]:
        """The new stored columns, from the old ones and the change; NULL if the group must be recomputed."""

    def must_recompute(self) -> exp.Expr | None:
        """The condition, over old columns and the change, under which the group must be read again; None for never."""
        return None

    def applies(self) -> exp.Expr | None:
        """The condition under which an input row counts: FILTER, and the argument not NULL."""
        conditions = [self.condition] if self.condition is not None else []
        if self.argument is not None:
            conditions.append(is_not_null(self.argument))
        return all_of(conditions) if conditions else None

    def where_it_applies(self, value: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Expr:
        """`value` for rows that count, else `otherwise`."""
        condition = self.applies()
        return value if condition is None else when(condition, value, otherwise)
