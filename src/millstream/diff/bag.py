"""The stage of a query without a key: plain rows, which are appended, and removed by their place in a file.

Semantics: a bag; a row that occurs three times is stored three times.
Delta rule: `net = consolidate(delta(x))`; rows with positive weight are appended; for a negative weight, that many of
    the equal stored rows are removed, regardless of which.
State kept: the rows themselves and nothing else, so that loading is a plain write and reading a plain read.
Cost: proportional to the delta; where rows are removed, one probe of the stored rows.
NULL and duplicate behaviour: NULLs are equal to each other here; the multiplicity is exact. -0.0 is not 0.0: the
    stored rows equal the query's result bit by bit.
Falls back when: never.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millstream.diff.aggregate.accumulator import OLD
from millstream.diff.difference import Difference
from millstream.diff.plan import MORE, NET, PLACE, REMOVED, Kind, Layout, Step
from millstream.diff.share import share
from millstream.diff.zset import consolidate, identical, identifying, renamed
from millstream.ops import Column, Filter, InnerJoin, Item, Project, Relation, Scan, Table, UnionAll, walk
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import ZERO, add_columns, cast, col, compare, conjuncts, keep, weight
from millstream.ops.relations import WEIGHT_COLUMN

RANK = Column("__ms_rank", "bigint")  # the number of a stored row among equal rows ...
GOING = Column("__ms_going", "bigint")  # ... of which the first `-GOING` are removed: the net weight


@dataclass(frozen=True)
class BagStage:
    """Maintains a relation as a bag; `body` has the stored columns."""

    body: Relation
    _planned: dict[frozenset[str], tuple[Step, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _additions: dict[frozenset[str], Step] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def layout(self) -> Layout:
        """The stored table."""
        names = tuple(c.name for c in self.body.columns)
        return Layout(Kind.BAG, self.body.columns, (), names)

    @property
    def is_monotone(self) -> bool:
        """Whether inserts into the inputs can only add rows."""
        return all(n.is_monotone and not reads_clock(n) for n in walk(self.body))

    def load(self) -> Relation:
        """The contents, from the inputs at the new frontier."""
        return Difference(frozenset()).new(self.body)

    def steps(self, changed: frozenset[str], *, at_once: bool = False) -> tuple[Step, ...]:
        """The steps of a refresh in which these inputs changed; `at_once` makes no difference here."""
        if changed not in self._planned:
            self._planned[changed] = self._plan(changed)
        return self._planned[changed]

    def _plan(self, changed: frozenset[str]) -> tuple[Step, ...]:
        change = Difference(changed).delta(self.body)
        if change is None:
            return ()
        net = consolidate(change)
        marked = Project(net, add_columns(net, [Item(cast(compare(exp.LT, weight(), ZERO), "boolean"), MORE)]))
        return share([Step(NET, marked), Step(REMOVED, self.removed(), only_if=NET, looks_up=NET)])

    def additions(self, changed: frozenset[str]) -> Step:
        """The delta itself, for a refresh that can only add rows."""
        if changed not in self._additions:
            change = Difference(changed).delta(self.body)
            assert change is not None, "no input changed"
            self._additions[changed] = Step(NET, consolidate(change) if _subtracts(self.body, changed) else change)
        return self._additions[changed]

    def removed(self) -> Relation:
        """The places of stored rows to remove: as many equal ones as the net weight requires."""
        going = Filter(Table(NET, (*self.body.columns, WEIGHT_COLUMN, MORE)), col(MORE.name))
        stored = renamed(self.layout.state, OLD)
        agrees = conjuncts(identical(self.body.columns, "", OLD))
        joined = InnerJoin((going, stored), tuple(agrees), small_first=True)
        order = exp.Order(expressions=[exp.Ordered(this=col(c.name + OLD)) for c in PLACE])
        rank = exp.Window(this=exp.RowNumber(), partition_by=identifying(self.body.columns), order=order)
        ranked = Project(
            joined,
            (
                *keep(self.body.columns),
                *(Item(col(c.name + OLD), c) for c in PLACE),
                Item(weight(), GOING),
                Item(cast(rank, "bigint"), RANK),
            ),
        )
        chosen = Filter(ranked, compare(exp.LTE, col(RANK.name), exp.Neg(this=col(GOING.name))))
        return Project(chosen, keep((*self.body.columns, *PLACE)))


def _subtracts(relation: Relation, changed: frozenset[str]) -> bool:
    """Whether the delta has terms that cancel others: that of a join has, if two of its inputs changed.

    Of the monotone operators, only a union's delta is no more than the sum of its inputs' changes.
    """
    changing = [c for c in relation.children if any(isinstance(n, Scan) and n.source in changed for n in walk(c))]
    if len(changing) > 1 and not isinstance(relation, UnionAll):
        return True
    return any(_subtracts(c, changed) for c in changing)
