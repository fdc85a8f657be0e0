"""Delta rules of the operators that are linear: the delta of the result is the operator applied to the delta.

Semantics: scan, filter, projection, repetition (EXPLODE and its like) and UNION ALL treat each row by itself.
Delta rule: `delta(op(x)) = op(delta(x))`; `delta(x UNION ALL y) = delta(x) + delta(y)`; a scan's delta is its change
    feed.
State kept: none.
Cost: proportional to the changed rows.
NULL and duplicate behaviour: weights carry duplicates; a predicate that is NULL drops the row on both sides alike.
Falls back when: never.
"""

from __future__ import annotations

from millstream.diff import current_time
from millstream.diff.base import Difference, delta_table, rule
from millstream.diff.zset import plus
from millstream.ops import Column, Filter, Item, OneRow, Project, Relation, Repeat, Scan, UnionAll
from millstream.ops.clock import tells_time
from millstream.ops.expressions import col, keep
from millstream.ops.relations import WEIGHT_COLUMN


@rule(Scan, "change feed")
def scan(difference: Difference, relation: Relation) -> Relation | None:
    """The scan's change feed."""
    assert isinstance(relation, Scan)
    return delta_table(relation) if relation.source in difference.changed else None


@rule(OneRow, "a constant")
def one_row(difference: Difference, relation: Relation) -> Relation | None:
    """It never changes."""
    return None


@rule(Filter, "filter of the delta")
def filter_(difference: Difference, relation: Relation) -> Relation | None:
    """The predicate decides about a row the same way whenever it is asked, unless it asks for the time."""
    assert isinstance(relation, Filter)
    if tells_time(relation):
        return current_time.filter_(difference, relation)
    change = difference.delta(relation.input)
    return None if change is None else Filter(change, relation.predicate)


@rule(Project, "projection of the delta")
def project(difference: Difference, relation: Relation) -> Relation | None:
    """A row's columns are computed from that row alone, unless from the time."""
    assert isinstance(relation, Project)
    if tells_time(relation):
        return current_time.project(difference, relation)
    change = difference.delta(relation.input)
    return None if change is None else Project(change, (*relation.items, *keep([WEIGHT_COLUMN])))


@rule(Repeat, "rows of the delta repeated")
def repeat(difference: Difference, relation: Relation) -> Relation | None:
    """How often a row comes is computed from that row alone."""
    assert isinstance(relation, Repeat)
    change = difference.delta(relation.input)
    return None if change is None else Repeat(change, relation.count, relation.number)


@rule(UnionAll, "union of the deltas")
def union_all(difference: Difference, relation: Relation) -> Relation | None:
    """A branch that did not change adds nothing; the columns keep the names of the first branch."""
    assert isinstance(relation, UnionAll)
    names = relation.columns
    changes = [_named_like(c, names) for i in relation.inputs if (c := difference.delta(i)) is not None]
    return plus(changes) if changes else None


def _named_like(change: Relation, columns: tuple[Column, ...]) -> Relation:
    items = tuple(Item(col(c.name), named) for c, named in zip(change.columns, columns, strict=True))
    return Project(change, (*items, *keep([WEIGHT_COLUMN])))
