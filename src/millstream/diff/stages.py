"""Splits a query into stages, so that every aggregation, window and recursion has its own stored table.

One at the top, with the filters and projections over it, is the public stage. One further down becomes a hidden stage,
which the stages above read like a table: the cost of each level then depends on what changed in it.

If the right input of a semi or anti join is itself a join, its keys become a hidden stage too: counted once and stored,
they need not be joined again for each row that may have gained or lost a partner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from millstream import naming
from millstream.diff.bag import BagStage
from millstream.diff.keyed import KeyedStage
from millstream.diff.partition import PartitionStage
from millstream.diff.recursive import RecursiveStage
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    Join,
    Opaque,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Scan,
    SemiJoin,
    UnionAll,
    Window,
    walk,
)
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import all_of, col, keep, substitute
from millstream.ops.relations import referenced

AnyStage = BagStage | KeyedStage | PartitionStage | RecursiveStage
PUBLIC = "result"

# types whose equal values are identical; for other types, a group shows any of the equal values
_DISTINGUISHED = {
    *("boolean", "tinyint", "smallint", "int", "bigint"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz"),
}


@dataclass(frozen=True)
class NamedStage:
    """A stage and the name under which later stages read it; the last is `PUBLIC`."""

    name: str
    stage: AnyStage
    inputs: tuple[str, ...]
    """The sources and earlier stages it reads, and the clock if it uses the current time."""


def split(relation: Relation) -> tuple[NamedStage, ...]:
    """The stages of a query in the order they are refreshed."""
    hidden = _Hidden({})
    aggregate, having, items = _peel(relation)
    stage: AnyStage
    if aggregate is not None:
        stage = KeyedStage(dataclasses.replace(aggregate, input=hidden.below(aggregate.input)), having, items)
    elif _window_of(relation) is not None:
        stage = hidden.partitioned(relation)
    elif (found := _peel_recursion(relation)) is not None:
        stage = hidden.recursive(*found)
    else:
        stage = BagStage(hidden.below(relation))
    return (*hidden.stages.values(), _named(PUBLIC, stage))


def _peel(relation: Relation) -> tuple[Aggregate | None, exp.Expr | None, tuple[Item, ...]]:
    """The aggregation under the filters and projections at the top, which are merged into one of each.

    A filter or projection that uses the current time is not part of the stage, which looks at touched groups only.
    """
    items = tuple(Item(col(c.name), c) for c in relation.schema)
    conditions: list[exp.Expr] = []
    while isinstance(relation, Filter | Project) and not reads_clock(relation):
        match relation:
            case Filter():
                conditions.append(relation.predicate)
            case Project():
                mapping = {i.column.name: i.expression for i in relation.items}
                items = tuple(Item(substitute(i.expression, mapping), i.column) for i in items)
                conditions = [substitute(c, mapping) for c in conditions]
            case _:
                assert_never(relation)
        relation = relation.input
    if not isinstance(relation, Aggregate):
        return None, None, ()
    return relation, all_of(conditions) if conditions else None, items


def _peel_recursion(relation: Relation) -> tuple[Recursion, tuple[str, ...]] | None:
    """The recursion under projections that only reorder its columns, and the order.

    If some columns were left out, the user would see equal rows appear and disappear.
    """
    picked = [c.name for c in relation.schema]
    while isinstance(relation, Project) and all(isinstance(i.expression, exp.Column) for i in relation.items):
        below = {i.column.name: i.expression.name for i in relation.items}
        picked = [below[name] for name in picked]
        relation = relation.input
    if not isinstance(relation, Recursion) or {c.name for c in relation.columns} != set(picked):
        return None
    return relation, tuple(picked)


def _window_of(relation: Relation) -> Window | None:
    """The Window under the filters and projections at the top.

    A filter or projection that uses the current time is not part of the stage, which looks at touched partitions only.
    """
    while isinstance(relation, Filter | Project) and not reads_clock(relation):
        relation = relation.input
    return relation if isinstance(relation, Window) else None


@dataclass(frozen=True)
class _Hidden:
    """The stages below the public one, by the relation they compute; equal relations share one."""

    stages: dict[Relation, NamedStage]

    def below(self, relation: Relation) -> Relation:
        """The relation with its aggregations, windows and recursions replaced by scans of hidden stages."""
        done: dict[Relation, Relation] = {}

        def visit(node: Relation) -> Relation:
            if node not in done:
                done[node] = replaced(node)
            return done[node]

        def replaced(node: Relation) -> Relation:
            match node:
                case Aggregate():
                    return self._aggregated(dataclasses.replace(node, input=visit(node.input)))
                case Recursion():
                    return self._scan(node, lambda: self.recursive(node, tuple(c.name for c in node.columns)))
                case Window() | Filter() | Project() if _window_of(node) is not None:
                    return self._scan(node, lambda: self.partitioned(node))
                case SemiJoin() | AntiJoin():
                    return self._with_counted_partners(node.over((visit(node.left), visit(node.right))))
                case Filter() | Project() | InnerJoin() | OuterJoin() | UnionAll() | Opaque():
                    return node.over(tuple(visit(child) for child in node.children))
            assert_never(node)

        return visit(relation)

    def partitioned(self, relation: Relation) -> PartitionStage:
        """The stage of a window and of the filters and projections over it."""
        outputs = tuple(c.name for c in relation.columns)
        return PartitionStage(self._keeping_partition(relation), outputs)

    def recursive(self, node: Recursion, outputs: tuple[str, ...]) -> RecursiveStage:
        """The stage of a recursion."""
        base, step = self.below(node.base), self.below(node.step)
        return RecursiveStage(dataclasses.replace(node, base=base, step=step), outputs)

    def _keeping_partition(self, node: Relation) -> Relation:
        """The same rows, including the columns of the partition, over an input that is cheap to read."""
        assert isinstance(node, Window | Filter | Project), "there is a window below filters and projections"
        match node:
            case Window():
                below = self.below(node.input)
                return dataclasses.replace(node, input=below if _is_cheap(below) else self._stored(below))
            case Filter():
                return Filter(self._keeping_partition(node.input), node.predicate)
            case Project():
                below = self._keeping_partition(node.input)
                window = _window_of(below)
                assert window is not None
                kept = {c.name for c in node.columns}
                missing = [c for c in below.columns if c.name in window.partition and c.name not in kept]
                return Project(below, (*node.items, *keep(missing)))
        assert_never(node)

    def _with_counted_partners(self, node: SemiJoin | AntiJoin) -> Relation:
        """The join with the distinct keys of its right input in place of that input, if that is itself a join."""
        keys = [c for c in node.right.columns if c.name in referenced(node.condition)]
        is_joined = any(isinstance(n, Join) for n in walk(node.right))
        if not (keys and is_joined and all(is_distinguished(c.type) for c in keys)):
            return node
        return dataclasses.replace(node, right=self._aggregated(Aggregate(node.right, keep(keys), ())))

    def _aggregated(self, node: Aggregate) -> Relation:
        items = tuple(Item(col(c.name), c) for c in node.schema)
        return self._scan(node, lambda: KeyedStage(node, None, items))

    def _stored(self, node: Relation) -> Relation:
        return self._scan(node, lambda: BagStage(node))

    def _scan(self, node: Relation, make: Callable[[], AnyStage]) -> Scan:
        if node not in self.stages:
            stage = make()  # may add further stages before this one
            self.stages[node] = _named(f"{naming.RESERVED_PREFIX}stage_{len(self.stages) + 1}", stage)
        found = self.stages[node]
        return Scan(found.name, found.stage.layout.outputs, node.schema)


def is_distinguished(type_: str) -> bool:
    """Whether equal values of a type are identical."""
    return type_ in _DISTINGUISHED or type_.startswith("decimal(")


def _is_cheap(relation: Relation) -> bool:
    """Whether reading the relation is about as cheap as reading a table."""
    return all(isinstance(n, Scan | Filter | Project | UnionAll) for n in walk(relation))


def _named(name: str, stage: AnyStage) -> NamedStage:
    read: dict[str, None] = dict.fromkeys(n.source for n in walk(stage.body) if isinstance(n, Scan))
    if isinstance(stage, RecursiveStage):  # it reads its own rows
        read.pop(stage.body.reference)
    if any(reads_clock(n) for n in walk(stage.body)):
        read[naming.CLOCK] = None
    return NamedStage(name, stage, tuple(read))
