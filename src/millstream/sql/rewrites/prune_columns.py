"""Drop unused columns, down to the scans: a refresh then reads and moves only what the query needs.

The branches of a UNION keep all their columns, since they determine which rows are equal. A relation that occurs in the
tree twice (a CTE) keeps what either place needs, so that it stays one relation with one delta.
"""

from __future__ import annotations

from collections.abc import Set

from millstream.ops import Relation


def prune_columns(relation: Relation) -> Relation:
    """The same result, from scans of the used columns only."""
    needs: dict[Relation, set[str]] = {}
    _collect(relation, {c.name for c in relation.schema}, needs)
    return _rebuild(relation, needs, {})


def _collect(relation: Relation, needed: Set[str], needs: dict[Relation, set[str]]) -> None:
    if relation in needs and needed <= needs[relation]:
        return
    known = needs.setdefault(relation, set())
    known |= needed
    below = relation.needs(known)
    for child in relation.children:
        _collect(child, below & {c.name for c in child.schema}, needs)


def _rebuild(relation: Relation, needs: dict[Relation, set[str]], done: dict[Relation, Relation]) -> Relation:
    if relation not in done:
        children = tuple(_rebuild(child, needs, done) for child in relation.children)
        done[relation] = relation.pruned(needs[relation], children)
    return done[relation]
