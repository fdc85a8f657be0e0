"""Drop columns nobody reads, down to the scans: a refresh then reads and moves only what the query needs.

The branches of a UNION keep all their columns, since there a column decides which rows are equal. A relation that
stands in the tree twice (a CTE) keeps what either place needs, so that it stays one relation with one delta.
"""

from __future__ import annotations

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Window,
)
from millstream.ops.relations import referenced
from millstream.ops.walk import with_children


def prune_columns(relation: Relation) -> Relation:
    """The same result, from scans of the used columns only."""
    needs: dict[Relation, set[str]] = {}
    _collect(relation, {c.name for c in relation.schema}, needs)
    return _rebuild(relation, needs, {})


def _collect(relation: Relation, needed: set[str], needs: dict[Relation, set[str]]) -> None:
    if relation in needs and needed <= needs[relation]:
        return
    known = needs.setdefault(relation, set())
    known |= needed
    below = _needed_below(relation, known)
    for child in relation.children:
        _collect(child, below & {c.name for c in child.schema}, needs)


def _needed_below(relation: Relation, needed: set[str]) -> set[str]:
    match relation:
        case Filter():
            return needed | referenced(relation.predicate)
        case Project():
            return {name for i in _kept(relation, needed) for name in referenced(i.expression)}
        case InnerJoin():
            return needed.union(*(referenced(c) for c in relation.conditions))
        case OuterJoin() | SemiJoin() | AntiJoin():
            return needed | referenced(relation.condition)
        case Aggregate():
            items = (*relation.keys, *(i for i in relation.calls if i.column.name in needed))
            return {name for i in items for name in referenced(i.expression)}
        case Window():
            calls = (i for i in relation.calls if i.column.name in needed)
            return needed.union(*(referenced(i.expression) for i in calls))
        case Repeat():
            return needed | referenced(relation.count)
    return {c.name for child in relation.children for c in child.schema}


def _rebuild(relation: Relation, needs: dict[Relation, set[str]], done: dict[Relation, Relation]) -> Relation:
    if relation not in done:
        children = tuple(_rebuild(child, needs, done) for child in relation.children)
        done[relation] = _narrowed(relation, children, needs[relation])
    return done[relation]


def _narrowed(relation: Relation, children: tuple[Relation, ...], needed: set[str]) -> Relation:
    match relation:
        case Scan():
            kept = [i for i, c in enumerate(relation.output) if c.name in needed] or [0]
            return Scan(
                relation.source, tuple(relation.origin[i] for i in kept), tuple(relation.output[i] for i in kept)
            )
        case Project():
            return Project(children[0], _kept(relation, needed))
        case Aggregate():
            return Aggregate(children[0], relation.keys, tuple(i for i in relation.calls if i.column.name in needed))
        case Window():
            calls = tuple(i for i in relation.calls if i.column.name in needed)
            return Window(children[0], relation.partition, calls) if calls else children[0]
    return with_children(relation, children)


def _kept(relation: Project, needed: set[str]) -> tuple[Item, ...]:
    """The items in use; a relation has at least one column, so that its rows can be counted."""
    return tuple(i for i in relation.items if i.column.name in needed) or relation.items[:1]
