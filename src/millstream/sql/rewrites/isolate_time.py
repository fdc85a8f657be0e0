"""Move the current time into filters and projections, which alone have delta rules for it (`diff.current_time`).

A condition of an inner join becomes a filter above it. In other joins, a condition on one side becomes a filter of that
side, if the side only determines which rows have a partner; otherwise it becomes a boolean column of that side, so that
only the rows change for which it does. For a condition that compares both sides with the time, the time becomes a
column of the right side. Arguments of aggregates and windows are already columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import assert_never

from sqlglot import exp

from millstream.naming import RESERVED_PREFIX
from millstream.ops import (
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    Join,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    transform,
)
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import add_columns, all_of, col, conjuncts, keep
from millstream.ops.relations import referenced


def isolate_time(relation: Relation) -> Relation:
    """The same result, with the current time in filters and projections only."""
    numbers = count(1)
    return transform(relation, lambda node: _isolated(node, numbers))


def _isolated(node: Relation, numbers: count[int]) -> Relation:
    if not isinstance(node, Join):
        return node
    match node:
        case InnerJoin():
            return _filtered(node)
        case OuterJoin() | SemiJoin() | AntiJoin():
            conditions = conjuncts(node.condition)
            if not any(reads_clock(c) for c in conditions):
                return node
            return _Sides(node.left, node.right, numbers).joined(node, conditions)
    assert_never(node)


def _filtered(node: InnerJoin) -> Relation:
    timed = [c for c in node.conditions if reads_clock(c)]
    if not timed:
        return node
    return Filter(replace(node, conditions=tuple(c for c in node.conditions if not reads_clock(c))), all_of(timed))


@dataclass
class _Sides:
    """The two inputs of a join while conditions move into them."""

    left: Relation
    right: Relation
    numbers: count[int]

    def joined(self, node: OuterJoin | SemiJoin | AntiJoin, conditions: list[exp.Expr]) -> Relation:
        """The join with conditions that do not use the time."""
        own = {c.name for c in node.left.columns}, {c.name for c in node.right.columns}
        kept = [self._moved(c, node, *own) if reads_clock(c) else c for c in conditions]
        join = replace(node, left=self.left, right=self.right, condition=all_of(c for c in kept if c is not None))
        return join if join.schema == node.schema else Project(join, keep(node.columns))

    def _moved(self, condition: exp.Expr, node: Relation, left: set[str], right: set[str]) -> exp.Expr | None:
        """What remains of a condition in the join; None if nothing does."""
        names = referenced(condition)
        keeps_rows_of_right = isinstance(node, OuterJoin) and node.kind == "full"
        if names <= right and not keeps_rows_of_right:
            self.right = Filter(self.right, condition)
            return None
        if names <= left and isinstance(node, SemiJoin):
            self.left = Filter(self.left, condition)
            return None
        if names <= right:
            self.right, flag = self._with(self.right, condition, "boolean")
            return flag
        if names <= left:
            self.left, flag = self._with(self.left, condition, "boolean")
            return flag
        self.right, time = self._with(self.right, exp.CurrentTimestamp(), "timestamp")
        return condition.transform(lambda n: time.copy() if isinstance(n, exp.CurrentTimestamp) else n)

    def _with(self, side: Relation, value: exp.Expr, type_: str) -> tuple[Relation, exp.Expr]:
        column = Column(f"{RESERVED_PREFIX}time_{next(self.numbers)}", type_)
        return Project(side, add_columns(side, [Item(value, column)])), col(column.name)
