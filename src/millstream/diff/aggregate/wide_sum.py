"""Sums of decimals so wide that Spark's result type has no spare digits.

Semantics: SUM over DECIMAL(p, s), p > 27 and s <= 6, such as the product of two prices. Its result is DECIMAL(38, s).
Delta rule: `sum += Σ w·x`, in the result's own type. A product of a decimal and a weight, and a sum of two decimals,
    lose decimal places only if there are more than six: the sum is exact, or it overflows.
State kept: the sum, NULL for no rows and for an overflow; the number of rows distinguishes them.
Cost: proportional to the changed rows.
NULL and duplicate behaviour: NULLs do not count; duplicates count by weight.
Falls back when: never; if an overflow returns NULL, the touched group is read again; if it is an error, the refresh is
    recomputed, and fails if the query itself does.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.diff.aggregate.accumulator import OLD, Accumulator
from millstream.ops import Column, Item
from millstream.ops.expressions import (
    ONE,
    ZERO,
    add,
    all_of,
    any_of,
    cast,
    coalesce,
    col,
    compare,
    is_null,
    multiply,
    total,
    weight,
    when,
)

MAX_SCALE = 6
"""If a number has too many digits, Spark drops decimal places, but keeps this many."""


@dataclass(frozen=True)
class WideSum(Accumulator):
    """The sum of the argument in the type of the result."""

    type: str
    count: str
    """The column that counts the rows with an argument."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, self.type),)

    @property
    def _change(self) -> Column:
        return Column(f"{self.name}__ms_d", self.type)

    @property
    def _changed(self) -> Column:
        """The column with the number of the delta's rows that count, regardless of weight."""
        return Column(f"{self.name}__ms_n", "bigint")

    def compute(self) -> tuple[Item, ...]:
        assert self.argument is not None
        return (Item(cast(total(self.where_it_applies(self.argument)), self.type), self.columns[0]),)

    def gather(self) -> tuple[Item, ...]:
        assert self.argument is not None
        product = multiply(cast(weight(), "decimal(10,0)"), self.argument)
        rows = coalesce(total(self.where_it_applies(cast(ONE, "bigint"))), ZERO)
        return (
            Item(cast(total(self.where_it_applies(product)), self.type), self._change),
            Item(cast(rows, "bigint"), self._changed),
        )

    def merge(self) -> dict[str, exp.Expr]:
        return {self.name: when(compare(exp.GT, col(self.count), ZERO), self._merged())}

    def must_recompute(self) -> exp.Expr | None:
        overflowed = all_of([compare(exp.GT, col(self.count + OLD), ZERO), is_null(col(self.name + OLD))])
        overflows = all_of([compare(exp.GT, col(self._changed.name), ZERO), is_null(col(self._change.name))])
        reasons = any_of([coalesce(overflowed, exp.false()), overflows, is_null(self._merged())])
        return all_of([compare(exp.GT, col(self.count), ZERO), reasons])

    def _merged(self) -> exp.Expr:
        zero = cast(ZERO, self.type)
        return cast(add(coalesce(col(self.name + OLD), zero), coalesce(col(self._change.name), zero)), self.type)
