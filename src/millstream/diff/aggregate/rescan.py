"""Aggregates without an exact algebra: the groups that a delta touches are read again.

Semantics: any aggregate whose result does not depend on the order of rows: sums of floating-point numbers and wide
    decimals, bit aggregates, percentiles, modes, sorted arrays and texts, variances and correlations of types whose
    sums would not be exact, DISTINCT over several arguments.
Delta rule: none; the aggregate is evaluated over `new(x)` semi-joined with the keys of the touched groups.
State kept: the result itself, so that an old value is removed as it was stored, never recomputed.
Cost: one read of the input, restricted to the touched groups.
NULL and duplicate behaviour: the engine's own.
Falls back when: never; recomputing a group is differential.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.diff.aggregate.accumulator import Accumulator
from millstream.ops import Column, Item
from millstream.ops.expressions import cast, null


@dataclass(frozen=True)
class Rescan(Accumulator):
    """The value of an aggregate call as the engine computes it."""

    type: str
    call: exp.Expr

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, self.type),)

    def compute(self) -> tuple[Item, ...]:
        return (Item(cast(self.call, self.type), self.columns[0]),)

    def gather(self) -> tuple[Item, ...]:
        return ()

    def merge(self) -> dict[str, exp.Expr]:
        return {self.name: null(self.type)}

    def must_recompute(self) -> exp.Expr | None:
        return exp.true()
