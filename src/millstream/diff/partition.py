"""The stage of window functions and Top-N: the rows of a partition are computed again when one of its rows changes.

Semantics: window functions over PARTITION BY columns, what the query computes from them, and which rows it keeps
    because of them (QUALIFY, the first rows of an order).
Delta rule: the partitions of `delta(x)` are the touched ones; their rows are computed from `new(x)` restricted to them,
    and the difference from the stored rows of these partitions is the change.
State kept: the rows of the result with the columns of their partition. Removed rows are found there: no old value is
    computed.
Cost: one read of the touched partitions, in the input and in the stored rows. A window over all rows has one
    partition. An input that is more than a filtered table is stored as a hidden stage, so that it is not computed
    again.
NULL and duplicate behaviour: NULLs are one partition; of equal rows, only the difference in number is added or removed.
Falls back when: never; computing a partition again is differential.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from millstream.diff.difference import Difference
from millstream.diff.plan import NET, PLACE, TOUCHED, Kind, Layout, Step
from millstream.diff.share import share
from millstream.diff.zset import distinct_columns, identifying, renamed
from millstream.ops import Column, Filter, Item, Project, Relation, SemiJoin, Table, UnionAll, Window
from millstream.ops.expressions import (
    ONE,
    all_of,
    cast,
    col,
    compare,
    keep,
    multiply,
    null,
    same,
    total,
    weight,
)
from millstream.ops.relations import WEIGHT_COLUMN

KEY = "__ms_p"  # suffix of the name of a touched partition's column
MORE_NOW = Column("__ms_more_now", "bigint")  # how many more equal rows there are now than are stored
NUMBER = Column("__ms_number", "bigint")  # the number of a row among the equal new, or equal stored, rows


@dataclass(frozen=True)
class PartitionStage:
    """Maintains a Window and the filters and projections over it.

    Args:
        body: these operators down to the Window; they keep the columns of its PARTITION BY.
        outputs: the columns of `body` that are the result.
    """

    body: Relation
    outputs: tuple[str, ...]
    _planned: dict[tuple[frozenset[str], bool], tuple[Step, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def window(self) -> Window:
        """The Window that the stage maintains."""
        node = self.body
        while not isinstance(node, Window):
            node = node.children[0]
        return node

    @property
    def layout(self) -> Layout:
        """The stored table."""
        return Layout(Kind.PARTITIONED, self.body.columns, self.window.partition, self.outputs)

    def load(self) -> Relation:
        """The contents, from the inputs at the new frontier."""
        return Difference(frozenset()).new(self.body)

    def steps(self, changed: frozenset[str], *, at_once: bool = False) -> tuple[Step, ...]:
        """The steps of a refresh in which these inputs changed.

        Args:
            at_once: omit `TOUCHED`, which saves a query if the stored rows need not be looked up.
        """
        if (changed, at_once) not in self._planned:
            self._planned[changed, at_once] = self._plan(changed, at_once)
        return self._planned[changed, at_once]

    def _plan(self, changed: frozenset[str], at_once: bool) -> tuple[Step, ...]:
        difference = Difference(changed)
        change = difference.delta(self.window.input)
        if change is None:
            return ()
        rows = difference.new(self.window.input)
        if not self.window.partition:
            return share([Step(NET, self._replaced(self._over(self.body, rows), self.layout.state))])
        touched = distinct_columns(change, self.window.partition)
        if at_once:
            return share([Step(NET, self._within(touched, rows))])
        found = self._within(Table(TOUCHED, touched.columns), rows)
        return share([Step(TOUCHED, touched), Step(NET, found, looks_up=TOUCHED)])

    def _within(self, touched: Relation, rows: Relation) -> Relation:
        """The change of the touched partitions."""
        partitions = renamed(touched, KEY)
        agrees = all_of(same(col(n), col(n + KEY)) for n in self.window.partition)
        fresh = self._over(self.body, SemiJoin(rows, partitions, agrees))
        return self._replaced(fresh, SemiJoin(self.layout.state, partitions, agrees))

    def _over(self, node: Relation, rows: Relation) -> Relation:
        """The body over some rows of its input."""
        below = rows if node is self.window else self._over(node.children[0], rows)
        return node.over((below,))

    def _replaced(self, fresh: Relation, stored: Relation) -> Relation:
        """Rows to add, with weight 1, and stored rows to remove, with their places and weight -1."""
        columns = self.layout.columns
        here = tuple(Item(null(c.type), c) for c in PLACE)
        both = UnionAll(
            (
                Project(fresh, (*keep(columns), *here, Item(cast(ONE, "bigint"), WEIGHT_COLUMN))),
                Project(stored, (*keep(columns), *keep(PLACE), Item(cast(exp.Neg(this=ONE), "bigint"), WEIGHT_COLUMN))),
            )
        )
        equals = identifying(columns)
        order = exp.Order(expressions=[exp.Ordered(this=col(c.name), nulls_first=True) for c in PLACE])
        surplus = exp.Window(this=total(weight()), partition_by=equals)
        number = exp.Window(this=exp.RowNumber(), partition_by=[*equals, weight()], order=order)
        calls = (Item(cast(surplus, "bigint"), MORE_NOW), Item(cast(number, "bigint"), NUMBER))
        counted = Project(both, (*keep(both.schema), *calls))
        wanted = compare(exp.LTE, col(NUMBER.name), multiply(col(MORE_NOW.name), weight()))
        return Project(Filter(counted, wanted), keep((*columns, *PLACE, WEIGHT_COLUMN)))
