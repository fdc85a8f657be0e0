"""The stage of a recursion (WITH RECURSIVE): its rows are stored, and a change passes through the step repeatedly.

Semantics: `base UNION ALL step` is the bag of the base's rows, of the step over those, of the step over these, and so
    on; with UNION each row counts once. The step is linear: it reads the recursion once, neither below an aggregation
    nor on the side of a join that determines which rows are missing.
Delta rule: UNION ALL (delta iteration): the first change is `delta(base)` and the change of the step over the stored
    rows, `delta(step)(old)`; each further one is `step(change)` over the new inputs, with weights; their sum is the
    change. UNION, if no stored row lost a derivation (semi-naive): the rows gained, and what the step derives from
    them, as long as that is not stored. UNION otherwise (delete and rederive): all rows that follow from a lost
    derivation over the old inputs are removed; those that follow from the base or from a remaining row are added
    again; then gains are processed as above. UNION over an operator whose gains and losses have no rule
    (recomputation): the recursion is evaluated from scratch and compared with the stored rows.
State kept: the rows of the recursion.
Cost: one query for each step of the recursion that the change passes through, over about as many rows as it has;
    delete and rederive visits what follows from the lost rows; a first load runs the same loop over the whole base.
NULL and duplicate behaviour: rows are compared with NULLs equal; the multiplicities of UNION ALL are exact.
Falls back when: never. A recursion that does not end, e.g. over a cycle with UNION ALL, fails the refresh after
    `max_recursion` repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from millstream.diff.bag import BagStage
from millstream.diff.difference import Difference
from millstream.diff.inputs import delta_name, new_name
from millstream.diff.plan import FRONTIER, MORE, NET, REMOVED, STORED, AnyStep, Fixpoint, Kind, Layout, Step
from millstream.diff.turnover import Turnover, has_rules, reads
from millstream.diff.zset import consolidate, distinct_columns, negate, plus, renamed, weighted
from millstream.ops import (
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    Project,
    Recursion,
    Relation,
    SemiJoin,
    Table,
    UnionAll,
    transform,
)
from millstream.ops.expressions import (
    ZERO,
    add_columns,
    all_of,
    cast,
    col,
    compare,
    keep,
    same,
    substitute,
    weight,
    wrapped,
)
from millstream.ops.join_order import connected_order
from millstream.ops.relations import WEIGHT_COLUMN

FIRST = "first"  # what the change of the inputs does to the stored rows; MORE is set for rows that lost a derivation
LOST = "lost"  # the stored rows that follow from those
FOUND = "found"  # rows found by the loop

DELTA_ITERATION = "delta iteration"
SEMI_NAIVE = "semi-naive"
REDERIVE = "delete and rederive"
RECOMPUTE = "recomputation"

_OTHER = "__ms_x"  # suffix of a column's name: its value in the other relation that rows are compared with


@dataclass(frozen=True)
class RecursiveStage:
    """Maintains a Recursion; `outputs` are its columns in the order of the result."""

    body: Recursion
    outputs: tuple[str, ...]
    _planned: dict[tuple[frozenset[str], bool], tuple[AnyStep, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def layout(self) -> Layout:
        """The stored table."""
        return Layout(Kind.BAG, self.body.columns, (), self.outputs)

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that may compute a change; a refresh uses one of them."""
        if not self.body.distinct:
            return (DELTA_ITERATION,)
        return (SEMI_NAIVE, REDERIVE) if self._has_rules else (RECOMPUTE,)

    def load(self) -> Fixpoint:
        """The contents, from the inputs at the new frontier, as weighted rows."""
        base = self._named(Difference(frozenset()).new(self.body.base))
        if not self.body.distinct:
            return Fixpoint(FOUND, Step(FOUND, consolidate(weighted(base))), Step(FOUND, self._next()))
        found = self._without(self._once(self._step_over_frontier()), Table(FOUND, self._weighted))
        return Fixpoint(FOUND, Step(FOUND, self._once(base)), Step(FOUND, found))

    def steps(self, changed: frozenset[str], *, at_once: bool = False) -> tuple[AnyStep, ...]:
        """The steps of a refresh in which these inputs changed.

        Args:
            at_once: compare with all stored rows, which are few, instead of first finding the ones to compare with.
        """
        if (changed, at_once) not in self._planned:
            steps = self._union(changed, at_once) if self.body.distinct else self._union_all(changed)
            self._planned[changed, at_once] = steps
        return self._planned[changed, at_once]

    # UNION ALL

    def _union_all(self, changed: frozenset[str]) -> tuple[AnyStep, ...]:
        difference = Difference(changed)
        branches = [difference.delta(self.body.base), difference.delta(self.body.step)]
        changes = [self._named(c) for c in branches if c is not None]
        if not changes:
            return ()
        first = Step(FOUND, self._bound(consolidate(plus(changes))))
        found = Fixpoint(FOUND, first, Step(FOUND, self._next()), strategy=DELTA_ITERATION)
        return found, *self._applied(consolidate(Table(FOUND, self._weighted)))

    def _next(self) -> Relation:
        """The result of the step for a change, by the delta rules, since the step is linear."""
        change = Difference(frozenset({self.body.reference})).delta(self.body.step)
        assert change is not None, "the step reads the recursion"
        return self._bound(consolidate(self._named(change)))

    # UNION

    def _union(self, changed: frozenset[str], at_once: bool) -> tuple[AnyStep, ...]:
        difference = Difference(changed)
        if difference.delta(self.body.base) is None and difference.delta(self.body.step) is None:
            return ()
        return self._derived(difference, at_once) if self._has_rules else self._recomputed()

    @cached_property
    def _has_rules(self) -> bool:
        return has_rules(self.body.step, self.body.reference)

    def _recomputed(self) -> tuple[AnyStep, ...]:
        load = self.load()
        found = Fixpoint(FOUND, load.seed, load.body, strategy=RECOMPUTE)
        change = plus([Table(FOUND, self._weighted), negate(self._stored)])
        return found, *self._applied(consolidate(change))

    def _derived(self, difference: Difference, at_once: bool) -> tuple[AnyStep, ...]:
        first = Table(FIRST, self._changes)
        lost, found = Table(LOST, self._weighted), Table(FOUND, self._weighted)
        net = consolidate(plus([found, negate(lost)]))
        gained = self._once(self._step_over_frontier())
        new = self._unknown(gained, self._stored, at_once)
        still_lost = self._known(self._lost_next(difference), self._stored, at_once)
        return (
            Step(FIRST, self._first(difference, at_once)),
            # without losses, the first change and what follows from it is the net change
            Fixpoint(
                NET,
                Step(NET, first),
                Step(NET, _marked(self._without(new, Table(NET, self._changes)))),
                unless=FIRST,
                strategy=SEMI_NAIVE,
            ),
            Fixpoint(
                LOST,
                Step(LOST, negate(Project(Filter(first, col(MORE.name)), keep(self._weighted)))),
                Step(LOST, self._without(still_lost, lost)),
                only_if=FIRST,
                strategy=REDERIVE,
            ),
            Fixpoint(
                FOUND,
                Step(FOUND, self._rederived(difference, at_once)),
                Step(FOUND, self._without(self._unknown(gained, self._stayed, at_once), found)),
                only_if=FIRST,
            ),
            Step(NET, _marked(net), only_if=FIRST),
            self._applied(net)[-1],
        )

    def _first(self, difference: Difference, at_once: bool) -> Relation:
        """The stored rows that lost a derivation, and the rows that are not stored and gained one."""
        turnover = self._turnover(difference, self._stored)
        lost, gained = self._both(turnover.lost), self._both(turnover.gained)
        parts: list[Relation] = []
        if lost is not None:
            parts.append(negate(self._known(self._once(lost), self._stored, at_once)))
        if gained is not None:
            parts.append(self._unknown(self._once(gained), self._stored, at_once))
        return _marked(plus(parts))

    def _lost_next(self, difference: Difference) -> Relation:
        """The rows that followed from the rows in the frontier."""
        return self._once(self._named(self._turnover(difference, self._frontier, are_few=True).ever(self.body.step)))

    def _rederived(self, difference: Difference, at_once: bool) -> Relation:
        """The lost rows that follow from the base or from a row that stayed, and the rows gained."""
        turnover = self._turnover(difference, self._stayed)
        lost = Project(Table(LOST, self._weighted), keep(self.body.columns))
        base = self._among(self._named(difference.new(self.body.base)), lost)
        again = self._named(_restricted(self.body.step, turnover, renamed(lost, _OTHER)))
        gained = self._both(turnover.gained)
        found = self._once(UnionAll((base, again) if gained is None else (base, again, gained)))
        return self._unknown(found, self._stayed, at_once)

    # Comparisons with the stored rows

    def _known(self, rows: Relation, stored: Relation, at_once: bool) -> Relation:
        """Those of the given distinct rows that are stored."""
        if at_once:
            return self._among(rows, stored)
        joined = InnerJoin((rows, renamed(stored, _OTHER)), (self._is_other(),), small_first=True)
        return Project(joined, keep(rows.schema))

    def _unknown(self, rows: Relation, stored: Relation, at_once: bool) -> Relation:
        """Those of the given distinct rows that are not stored.

        Spark sends only the right side of an anti join to all tasks. That is the larger one here, unless it is first
        restricted to the rows that matter.
        """
        return self._without(rows, stored if at_once else self._known(rows, stored, at_once))

    # The relations that the steps consist of

    @property
    def _weighted(self) -> tuple[Column, ...]:
        return (*self.body.columns, WEIGHT_COLUMN)

    @property
    def _changes(self) -> tuple[Column, ...]:
        return (*self._weighted, MORE)

    @property
    def _stored(self) -> Relation:
        return Table(STORED, self.body.columns)

    @property
    def _frontier(self) -> Relation:
        return Project(Table(FRONTIER, self._weighted), keep(self.body.columns))

    @property
    def _stayed(self) -> Relation:
        """The stored rows that are not lost."""
        return self._without(self._stored, Table(LOST, self._weighted))

    def _step_over_frontier(self) -> Relation:
        turnover = self._turnover(Difference(frozenset()), self._frontier, are_few=True)
        return self._named(turnover.now(self.body.step))

    def _turnover(self, difference: Difference, rows: Relation, *, are_few: bool = False) -> Turnover:
        return Turnover(difference, self.body.reference, rows, are_few)

    def _both(self, change: _Change) -> Relation | None:
        """The gains or the losses of both branches."""
        parts = [self._named(r) for branch in (self.body.base, self.body.step) if (r := change(branch)) is not None]
        return None if not parts else parts[0] if len(parts) == 1 else UnionAll(tuple(parts))

    def _named(self, branch: Relation) -> Relation:
        """A branch under the recursion's names."""
        names = zip(branch.columns, self.body.columns, strict=True)
        items = tuple(Item(col(c.name), named) for c, named in names)
        return Project(branch, (*items, *keep([WEIGHT_COLUMN])) if branch.is_weighted else items)

    def _bound(self, relation: Relation) -> Relation:
        """The relation with the stage's names for the recursion and its change in place of the delta rules' names."""
        names = {new_name(self.body.reference): STORED, delta_name(self.body.reference): FRONTIER}

        def rename(node: Relation) -> Relation:
            return Table(names[node.name], node.output) if isinstance(node, Table) and node.name in names else node

        return transform(relation, rename)

    def _once(self, relation: Relation) -> Relation:
        """Each row once, with the weight one."""
        return weighted(distinct_columns(relation, [c.name for c in self.body.columns]))

    def _among(self, relation: Relation, others: Relation) -> Relation:
        return SemiJoin(relation, renamed(others, _OTHER), self._is_other())

    def _without(self, relation: Relation, *others: Relation) -> Relation:
        for other in others:
            relation = AntiJoin(relation, renamed(other, _OTHER), self._is_other())
        return relation

    def _is_other(self) -> exp.Expr:
        return all_of(same(col(c.name), col(c.name + _OTHER)) for c in self.body.columns)

    def _applied(self, net: Relation) -> tuple[Step, Step]:
        """The net change, and the places of the rows to remove."""
        places = BagStage(Project(self._stored, keep(self.body.columns))).removed()
        return Step(NET, _marked(net)), Step(REMOVED, places, only_if=NET, looks_up=NET)


_Change = Callable[[Relation], Relation | None]


def _marked(net: Relation) -> Relation:
    """A change with MORE set for rows that are removed."""
    return Project(net, add_columns(net, [Item(cast(compare(exp.LT, weight(), ZERO), "boolean"), MORE)]))


def _restricted(step: Relation, turnover: Turnover, wanted: Relation) -> Relation:
    """The rows of the step that are wanted; a join in it starts from the wanted rows.

    Otherwise it would be computed from all rows of the recursion, to find a handful.
    """
    if isinstance(step, UnionAll):
        return UnionAll(tuple(_restricted(i, turnover, wanted) for i in step.inputs))
    items = keep(step.columns)
    below: Relation = step
    conditions: tuple[exp.Expr, ...] = ()
    while isinstance(below, Filter | Project):
        if isinstance(below, Filter):
            conditions = (*conditions, below.predicate)
        else:
            values = {i.column.name: i.expression for i in below.items}
            items = tuple(Item(substitute(i.expression, values), i.column) for i in items)
            conditions = tuple(substitute(c, values) for c in conditions)
        below = below.input
    wanted_ones = zip(items, wanted.columns, strict=True)
    conditions = (*conditions, *(same(wrapped(i.expression), col(w.name)) for i, w in wanted_ones))
    inputs = below.inputs if isinstance(below, InnerJoin) else (below,)
    if isinstance(below, InnerJoin):
        conditions = (*below.conditions, *conditions)
    # The recursion's own rows are joined last: by then, more conditions restrict them. A depth alone, for example, is
    # shared by a large part of them.
    ordered_inputs = sorted(inputs, key=lambda i: reads(i, turnover.reference))
    ordered = connected_order(wanted, [turnover.now(i) for i in ordered_inputs], conditions)
    return Project(InnerJoin(tuple(ordered), conditions, small_first=True), items)
