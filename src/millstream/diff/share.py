"""Turns a relation that the steps of a stage read in several places into a separate step, computed once.

That pays off if the relation is small, because it comes from a change, so that keeping it costs little; and if
computing it reads a large table, so that doing it twice costs much. Of nested relations, only the outer one becomes a
step, unless the inner one is also read elsewhere. Examples are a CTE read twice, the affected rows of an anti join, and
the delta of an outer join's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from millstream.diff.narrow import narrow
from millstream.diff.plan import STATE, Step
from millstream.ops import Filter, Grouping, Join, Relation, Table, walk
from millstream.ops.walk import occurrences

SHARED = "shared_"
"""The prefix of the names of such steps."""

_COSTLY = Join | Grouping


def share(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps, each shared step placed before the first one that needs it."""
    looked_up = {STATE, *(step.name for step in steps)}
    steps = [dataclasses.replace(step, relation=narrow(step.relation, looked_up)) for step in steps]
    counts = occurrences(tuple(step.relation for step in steps))
    small = {step.name for step in steps}
    result: list[Step] = []
    done: dict[Relation, Relation] = {}

    def visit(relation: Relation, only_if: str | None) -> Relation:
        if relation not in done:
            rebuilt = relation.over(tuple(visit(child, only_if) for child in relation.children))
            if counts[relation] > 1 and _is_worth_keeping(rebuilt, small):
                name = f"{SHARED}{len(small) - len(steps) + 1}"
                small.add(name)
                result.append(Step(name, rebuilt, only_if))
                rebuilt = Table(name, relation.schema)
            done[relation] = rebuilt
        return done[relation]

    for step in steps:
        relation = visit(step.relation, step.only_if)
        result.append(dataclasses.replace(step, relation=relation))
    return tuple(result)


def _is_worth_keeping(relation: Relation, steps: Set[str]) -> bool:
    nodes = list(walk(relation))
    reads_large = any(isinstance(n, Table) and not n.is_small(steps) for n in nodes)
    is_costly = any(isinstance(n, _COSTLY) or (isinstance(n, Filter) and n.few) for n in nodes)
    return reads_large and is_costly and relation.is_small(steps)
