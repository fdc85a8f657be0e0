"""Counts and sums: the new value is the old one plus the change.

Semantics: COUNT(*), COUNT(x), SUM(x) over exact types; AVG is a quotient of the two. BOOL_AND, BOOL_OR and COUNT_IF
    are counts; variances, covariances, correlations and regressions over integers and decimals of up to 13 digits are
    expressions over counts and sums. COUNT(DISTINCT x), SUM(DISTINCT x) and AVG(DISTINCT x) are the plain functions
    over a hidden aggregation by x.
Delta rule: `count += Σ w`, `sum += Σ w·x` over the delta's rows of the group.
State kept: one column each. SUM over BIGINT is kept as DECIMAL(38,0): partial sums of a delta may leave BIGINT's range
    although the total does not; the cast back fails exactly where the query itself would.
Cost: proportional to the changed rows; no group is read again.
NULL and duplicate behaviour: NULLs do not count; duplicates count by weight. SUM of no rows is NULL, which is detected
    by the count.
Falls back when: never. Types whose weighted sums are not exact (floating point, DECIMAL beyond 27 digits: see
    `wide_sum`) belong to other families, see `choose`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.diff.aggregate.accumulator import OLD, Accumulator
from millstream.ops import Column, Item
from millstream.ops.expressions import ONE, ZERO, add, cast, coalesce, col, multiply, total, weight


def _change(name: str) -> str:
    return f"{name}__ms_d"


@dataclass(frozen=True)
class CountOf(Accumulator):
    """How many input rows count."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, "bigint"),)

    def compute(self) -> tuple[Item, ...]:
        counted = coalesce(total(self.where_it_applies(cast(ONE, "bigint"))), ZERO)
        return (Item(cast(counted, "bigint"), self.columns[0]),)

    def gather(self) -> tuple[Item, ...]:
        changed = coalesce(total(self.where_it_applies(weight())), ZERO)
        return (Item(cast(changed, "bigint"), Column(_change(self.name), "bigint")),)

    def merge(self) -> dict[str, exp.Expr]:
        return {self.name: add(coalesce(col(self.name + OLD), ZERO), coalesce(col(_change(self.name)), ZERO))}


@dataclass(frozen=True)
class SumOf(Accumulator):
    """The exact sum of the argument, zero for no rows."""

    type: str
    """The type in which the sum is stored."""
    argument_type: str
    """The type of the argument, wide enough for a product with a weight."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, self.type),)

    def compute(self) -> tuple[Item, ...]:
        assert self.argument is not None
        summed = total(self.where_it_applies(self.argument))
        return (Item(coalesce(cast(summed, self.type), cast(ZERO, self.type)), self.columns[0]),)

    def gather(self) -> tuple[Item, ...]:
        assert self.argument is not None
        product = multiply(cast(weight(), self._weight_type()), cast(self.argument, self.argument_type))
        summed = total(self.where_it_applies(product))
        changed = coalesce(cast(summed, self.type), cast(ZERO, self.type))
        return (Item(changed, Column(_change(self.name), self.type)),)

    def merge(self) -> dict[str, exp.Expr]:
        zero = cast(ZERO, self.type)
        return {
            self.name: cast(
                add(coalesce(col(self.name + OLD), zero), coalesce(col(_change(self.name)), zero)), self.type
            )
        }

    def _weight_type(self) -> str:
        return "decimal(10,0)" if self.argument_type.startswith("decimal") else "bigint"
