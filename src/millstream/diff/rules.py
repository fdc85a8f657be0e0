"""The table of delta rules: one entry for each operator, with the reason if it has no rule.

A rule turns an operator into the operators of its delta. Rules are pure and know neither Spark nor a database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.diff import anti_join, inner_join, linear, outer_join, semi_join
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    OneRow,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
    Window,
)

if TYPE_CHECKING:
    from millstream.diff.difference import Difference

N = TypeVar("N", bound=Relation)


@dataclass(frozen=True)
class Rule(Generic[N]):
    """The delta of an operator; `explain` shows its strategy."""

    operator: type[N]
    delta: Callable[[Difference, N], Relation | None]
    strategy: str
    strategy_with_clock: str = ""
    """The strategy of an operator that uses the current time, if it can."""


@dataclass(frozen=True)
class NoRule:
    """An operator that no rule differentiates."""

    operator: type[Relation]
    reason: str
    stage: str = ""
    """The module of `diff` whose stage maintains the operator instead."""


_PARTNERS = "rows that gain their first or lose their last partner"
_FILTERED = "filter of the delta, and rows that enter or leave as time passes"
_PROJECTED = "projection of the delta, and rows whose values change with time"

RULES = (
    Rule(Scan, linear.scan, "change feed"),
    Rule(OneRow, linear.one_row, "a constant"),
    Rule(Filter, linear.filter_, "filter of the delta", _FILTERED),
    Rule(Project, linear.project, "projection of the delta", _PROJECTED),
    Rule(Repeat, linear.repeat, "rows of the delta repeated"),
    Rule(UnionAll, linear.union_all, "union of the deltas"),
    Rule(InnerJoin, inner_join.inner_join, "sum of joins that start from a delta"),
    Rule(OuterJoin, outer_join.outer_join, "inner join plus rows that gain or lose their partners"),
    Rule(SemiJoin, semi_join.semi_join, _PARTNERS),
    Rule(AntiJoin, anti_join.anti_join, _PARTNERS),
    NoRule(Aggregate, "its stage merges touched groups with their stored state", stage="keyed"),
    NoRule(Window, "its stage computes touched partitions again", stage="partition"),
    NoRule(Recursion, "its stage repeats the step over the change", stage="recursive"),
    NoRule(Table, "it occurs only in plans, which are not differentiated"),
)

_BY_OPERATOR: dict[type[Relation], Rule[Any] | NoRule] = {entry.operator: entry for entry in RULES}


def rule_of(relation: Relation) -> Rule[Any] | NoRule:
    """The entry of the relation's operator."""
    return _BY_OPERATOR[type(relation)]
