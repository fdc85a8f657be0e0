"""MIN and MAX: by comparison, with the extremum's multiplicity stored so that few groups are read again.

Semantics: the least or greatest argument of the group's rows. ANY_VALUE, FIRST and LAST are also extremes, since any
    value is valid; MAX_BY and MIN_BY are extremes of pairs.
Delta rule: let `e` be the stored extremum and `m` a number of rows known to hold it. An inserted value beyond `e`
    replaces it; rows equal to `e` change `m`; while `m` stays positive, the extremum is unchanged. Otherwise the group
    is read again. No value removed from a group lies beyond `e`, so the extremum of the removed values shows whether
    `e` itself was removed.
State kept: `e` and `m`. A load sets `m` to 1, a lower bound that costs no second pass; recomputing a group counts it
    exactly.
Cost: proportional to the changed rows, plus one read of the input restricted to the groups that lost their extremum.
NULL and duplicate behaviour: NULLs do not count; a group without values has a NULL extremum and is not read again.
Falls back when: never; recomputing a group is differential.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    cases,
    cast,
    coalesce,
    col,
    compare,
    is_not_null,
    is_null,
    not_,
    null,
    total,
    weight,
    when,
)


@dataclass(frozen=True)
class Extremum(Accumulator):
    """The least (`greatest` false) or greatest argument, and how many rows are known to hold it."""

    type: str
    greatest: bool
    count: str
    """The column that counts the rows with an argument: at zero there is no extremum."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, self.type), Column(self._multiplicity, "bigint"))

    @property
    def _multiplicity(self) -> str:
        return f"{self.name}__ms_m"

    @property
    def _net(self) -> str:
        """The column with the net weight, within the group, of a delta row's value."""
        return f"{self.name}__ms_net"

    def _of_change(self, what: str) -> str:
        return f"{self.name}__ms_{what}"

    def compute(self) -> tuple[Item, ...]:
        assert self.argument is not None
        best = self._best(self.where_it_applies(self.argument))
        held = when(is_null(best), cast(ZERO, "bigint"), cast(ONE, "bigint"))
        return (Item(best, self.columns[0]), Item(held, self.columns[1]))

    def prepare_compute(self, keys: Sequence[exp.Expr]) -> tuple[Item, ...]:
        assert self.argument is not None
        best = exp.Window(this=self._best(self.where_it_applies(self.argument)), partition_by=list(keys))
        return (Item(best, Column(self._of_change("best"), self.type)),)

    def recompute(self) -> tuple[Item, ...]:
        assert self.argument is not None
        holds = compare(exp.EQ, self.where_it_applies(self.argument), col(self._of_change("best")))
        held = coalesce(total(when(holds, cast(ONE, "bigint"))), ZERO)
        return (
            Item(self._best(self.where_it_applies(self.argument)), self.columns[0]),
            Item(cast(held, "bigint"), self.columns[1]),
        )

    def prepare(self, keys: Sequence[exp.Expr]) -> tuple[Item, ...]:
        assert self.argument is not None
        value = self.where_it_applies(self.argument)
        net = exp.Window(this=total(weight()), partition_by=[*keys, value])
        return (Item(cast(net, "bigint"), Column(self._net, "bigint")),)

    def gather(self) -> tuple[Item, ...]:
        assert self.argument is not None
        items: list[Item] = []
        for what, sign in (("in", exp.GT), ("out", exp.LT)):
            counts = all_of(c for c in (self.applies(), compare(sign, col(self._net), ZERO)) if c is not None)
            value, net = when(counts, self.argument), when(counts, col(self._net))
            net_of_best = exp.ArgMax if self.greatest else exp.ArgMin
            items += [
                Item(self._best(value), Column(self._of_change(what), self.type)),
                Item(
                    cast(net_of_best(this=net, expression=value), "bigint"),
                    Column(self._of_change(what + "_n"), "bigint"),
                ),
            ]
        return tuple(items)

    def merge(self) -> dict[str, exp.Expr]:
        old, incoming = col(self.name + OLD), col(self._of_change("in"))
        wins, none_left = self._incoming_wins(), compare(exp.EQ, col(self.count), ZERO)
        value = cases((none_left, null(self.type)), (wins, incoming), (compare(exp.GT, self._held(), ZERO), old))
        held = cases((none_left, cast(ZERO, "bigint")), (wins, col(self._of_change("in_n"))), otherwise=self._held())
        return {self.name: value, self._multiplicity: held}

    def must_recompute(self) -> exp.Expr | None:
        return all_of(
            [
                compare(exp.GT, col(self.count), ZERO),
                not_(coalesce(self._incoming_wins(), exp.false())),
                compare(exp.LTE, self._held(), ZERO),
            ]
        )

    def _incoming_wins(self) -> exp.Expr:
        """Whether there was no extremum before, or a value beyond it was inserted."""
        old, incoming = col(self.name + OLD), col(self._of_change("in"))
        beyond = compare(exp.GT if self.greatest else exp.LT, incoming, old)
        return all_of([is_not_null(incoming), any_of([is_null(old), beyond])])

    def _held(self) -> exp.Expr:
        """How many rows hold the old extremum now."""
        old = col(self.name + OLD)
        moved = cases(
            *(
                (compare(exp.EQ, col(self._of_change(what)), old), col(self._of_change(what + "_n")))
                for what in ("in", "out")
            ),
            otherwise=ZERO,
        )
        return add(coalesce(col(self._multiplicity + OLD), ZERO), moved)

    def _best(self, value: exp.Expr) -> exp.Expr:
        return exp.Max(this=value) if self.greatest else exp.Min(this=value)
