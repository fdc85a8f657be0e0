"""Splitting a query into stages, so that every aggregation has a stored table of its own.

An aggregation at the top, with the filters and projections on it, is the stage the user sees. One further down becomes
a hidden stage, which the stages above read like a table: each level then costs what changed in it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from sqlglot import exp

from millstream import naming
from millstream.diff.bag import BagStage
from millstream.diff.keyed import KeyedStage
from millstream.ops import Aggregate, Filter, Item, Project, Relation, Scan, transform, walk
from millstream.ops.expressions import all_of, col, substitute

AnyStage = BagStage | KeyedStage
PUBLIC = "result"


@dataclass(frozen=True)
class NamedStage:
    """A stage and the name under which later stages read it; the last is `PUBLIC`."""

    name: str
    stage: AnyStage
    inputs: tuple[str, ...]
    """The sources and earlier stages it reads."""


def split(relation: Relation) -> tuple[NamedStage, ...]:
    """The stages of a query in the order they are refreshed."""
    hidden: dict[Aggregate, NamedStage] = {}
    aggregate, having, items = _peel(relation)
    if aggregate is not None:
        body = dataclasses.replace(aggregate, input=_hide(aggregate.input, hidden))
        stage: AnyStage = KeyedStage(body, having, items)
    else:
        stage = BagStage(_hide(relation, hidden))
    return (*hidden.values(), _named(PUBLIC, stage))


def _peel(relation: Relation) -> tuple[Aggregate | None, exp.Expr | None, tuple[Item, ...]]:
    """The aggregation under the filters and projections at the top, with those folded into one of each."""
    items = tuple(Item(col(c.name), c) for c in relation.schema)
    conditions: list[exp.Expr] = []
    while isinstance(relation, Filter | Project):
        if isinstance(relation, Filter):
            conditions.append(relation.predicate)
        else:
            mapping = {i.column.name: i.expression for i in relation.items}
            items = tuple(Item(substitute(i.expression, mapping), i.column) for i in items)
            conditions = [substitute(c, mapping) for c in conditions]
        relation = relation.input
    if not isinstance(relation, Aggregate):
        return None, None, ()
    return relation, all_of(conditions) if conditions else None, items


def _hide(relation: Relation, hidden: dict[Aggregate, NamedStage]) -> Relation:
    """Replace aggregations by scans of hidden stages, the innermost first; equal ones share a stage."""

    def replace(node: Relation) -> Relation:
        if not isinstance(node, Aggregate):
            return node
        if node not in hidden:
            items = tuple(Item(col(c.name), c) for c in node.schema)
            hidden[node] = _named(f"{naming.RESERVED_PREFIX}stage_{len(hidden) + 1}", KeyedStage(node, None, items))
        found = hidden[node]
        return Scan(found.name, found.stage.layout.outputs, node.schema)

    return transform(relation, replace)


def _named(name: str, stage: AnyStage) -> NamedStage:
    body = stage.body
    return NamedStage(name, stage, tuple(dict.fromkeys(n.source for n in walk(body) if isinstance(n, Scan))))
