"""Delta rules of the linear operators: the delta of the result is the operator applied to the delta.

Semantics: scan, filter, projection, repetition (EXPLODE and the like) and UNION ALL treat each row by itself.
Delta rule: `delta(op(x)) = op(delta(x))`; `delta(x UNION ALL y) = delta(x) + delta(y)`; a scan's delta is its change
    feed.
State kept: none.
Cost: proportional to the changed rows.
NULL and duplicate behaviour: weights count duplicates; a predicate that is NULL drops the row before and after alike.
Falls back when: never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.diff import current_time
from millstream.diff.inputs import delta_table
from millstream.diff.zset import plus
from millstream.ops import Column, Filter, Item, OneRow, Project, Relation, Repeat, Scan, UnionAll
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import col, keep
from millstream.ops.relations import WEIGHT_COLUMN

if TYPE_CHECKING:
    from millstream.diff.difference import Difference


def scan(difference: Difference, relation: Scan) -> Relation | None:
    """The scan's change feed."""
    return delta_table(relation) if relation.source in difference.changed else None


def one_row(difference: Difference, relation: OneRow) -> Relation | None:
    """A constant row never changes."""
    return None


def filter_(difference: Difference, relation: Filter) -> Relation | None:
    """The predicate has the same result for a row at any time, unless it uses the current time."""
    if reads_clock(relation):
        return current_time.filter_(difference, relation)
    change = difference.delta(relation.input)
    return None if change is None else Filter(change, relation.predicate)


def project(difference: Difference, relation: Project) -> Relation | None:
    """A row's columns are computed from that row alone, unless they use the current time."""
    if reads_clock(relation):
        return current_time.project(difference, relation)
    change = difference.delta(relation.input)
    return None if change is None else Project(change, (*relation.items, *keep([WEIGHT_COLUMN])))


def repeat(difference: Difference, relation: Repeat) -> Relation | None:
    """The number of repetitions is computed from the row alone."""
    change = difference.delta(relation.input)
    return None if change is None else Repeat(change, relation.count, relation.number)


def union_all(difference: Difference, relation: UnionAll) -> Relation | None:
    """A branch that did not change adds nothing; the columns keep the names of the first branch."""
    names = relation.columns
    changes = [_named_like(c, names) for i in relation.inputs if (c := difference.delta(i)) is not None]
    return plus(changes) if changes else None


def _named_like(change: Relation, columns: tuple[Column, ...]) -> Relation:
    items = tuple(Item(col(c.name), named) for c, named in zip(change.columns, columns, strict=True))
    return Project(change, (*items, *keep([WEIGHT_COLUMN])))
