"""The stage of an aggregation: one stored row per group, replaced when the group changes.

Semantics: GROUP BY with aggregates, DISTINCT (keys without aggregates), and what the query computes from them: the
    SELECT list and HAVING above. GROUPING SETS, CUBE and ROLLUP group each row once per set, with keys that are not in
    the set masked by NULL and the set's number as a hidden key.
Delta rule: the delta's rows are grouped; each touched group's stored row is looked up and merged with its change,
    accumulator by accumulator. A group without rows is removed; the single row of a global aggregate never is.
State kept: per group the keys, the number of rows, the accumulators, and each output column that is not one of these.
    A group that HAVING hides is stored with VISIBLE false.
Cost: proportional to the changed rows and touched groups; some aggregates must read groups again, see the families.
NULL and duplicate behaviour: NULL keys form one group.
Falls back when: never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from millstream import naming
from millstream.diff.aggregate import Accumulator, Call, accumulate
from millstream.diff.aggregate.accumulator import OLD
from millstream.diff.aggregate.algebraic import CountOf, SumOf
from millstream.diff.difference import Difference
from millstream.diff.plan import CHANGES, MORE, RECOMPUTED, SHOWN, STORE, TOUCHED, Kind, Layout, Step
from millstream.diff.share import share
from millstream.diff.zset import distinct_columns, identical, renamed
from millstream.ops import Aggregate, Column, Filter, Item, OuterJoin, Project, Relation, SemiJoin, Table
from millstream.ops.expressions import (
    ZERO,
    add_columns,
    all_of,
    any_of,
    cases,
    cast,
    coalesce,
    col,
    compare,
    is_null,
    not_,
    same,
    substitute,
    when,
)

VISIBLE = Column(naming.VISIBLE, "boolean")
FRESH = "__ms_f"  # suffix of a key's name: its value among the recomputed groups


@dataclass(frozen=True)
class KeyedStage:
    """Maintains an Aggregate, and the query's filter and projection over it.

    Args:
        body: the aggregation.
        having: a predicate over the columns of `body`.
        items: the output columns as expressions over the columns of `body`.
    """

    body: Aggregate
    having: exp.Expr | None
    items: tuple[Item, ...]
    _planned: dict[tuple[frozenset[str], bool], tuple[Step, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def _accumulated(self) -> tuple[tuple[Accumulator, ...], tuple[Call, ...]]:
        return accumulate(self.body.calls, {c.name: c.type for c in self.body.input.columns})

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The stored quantities of a group."""
        return self._accumulated[0]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The aggregate calls, expressed over the accumulators."""
        return self._accumulated[1]

    @cached_property
    def _state_columns(self) -> tuple[Column, ...]:
        keys = tuple(i.column for i in self.body.keys)
        return keys + tuple(c for a in self.accumulators for c in a.columns)

    @cached_property
    def _over_state(self) -> dict[str, exp.Expr]:
        """Each column of the aggregation as an expression over stored columns."""
        return {i.column.name: col(i.column.name) for i in self.body.keys} | {
            c.column.name: c.value for c in self.calls
        }

    @cached_property
    def _computed(self) -> tuple[Item, ...]:
        """The outputs that are stored in separate columns."""
        stored = {c.name for c in self._state_columns}
        items: list[Item] = []
        for number, item in enumerate(self.items, start=1):
            expression = substitute(item.expression, self._over_state)
            if not (isinstance(expression, exp.Column) and expression.name in stored):
                items.append(Item(expression, Column(f"__ms_out_{number}", item.column.type)))
        return tuple(items)

    @cached_property
    def layout(self) -> Layout:
        """The stored table."""
        outputs: list[str] = []
        computed = iter(self._computed)
        stored = {c.name for c in self._state_columns}
        for item in self.items:
            expression = substitute(item.expression, self._over_state)
            is_stored = isinstance(expression, exp.Column) and expression.name in stored
            outputs.append(expression.name if is_stored else next(computed).column.name)
        columns = (*self._state_columns, *(i.column for i in self._computed))
        if self.having is not None:
            columns = (*columns, VISIBLE)
        key = tuple(i.column.name for i in self.body.keys)
        return Layout(Kind.KEYED, columns, key, tuple(outputs), self.having is not None)

    def load(self) -> Relation:
        """The contents, from the inputs at the new frontier."""
        source = Difference(frozenset()).new(self.body.input)
        grouped = Aggregate(source, self.body.keys, tuple(i for a in self.accumulators for i in a.compute()))
        return self._with_outputs(grouped, {})

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
        change = difference.delta(self.body.input)
        if change is None:
            return ()
        touched = self._touched(change)
        if at_once:
            steps = [Step(CHANGES, self._changes(touched))]
        else:
            found = self._changes(Table(TOUCHED, touched.columns))
            steps = [Step(TOUCHED, touched), Step(CHANGES, found, looks_up=TOUCHED)]
        if any(a.must_recompute() is not None for a in self.accumulators):
            steps.append(Step(RECOMPUTED, self._recomputed(difference.new(self.body.input)), only_if=CHANGES))
        return share(steps)

    # The touched groups, merged with their stored rows

    def _touched(self, change: Relation) -> Relation:
        """The change of each touched group."""
        keys = [i.expression for i in self.body.keys]
        prepared = [i for a in self.accumulators for i in a.prepare(keys)]
        if prepared:
            change = Project(change, add_columns(change, prepared))
        return Aggregate(change, self.body.keys, tuple(i for a in self.accumulators for i in a.gather()))

    def _changes(self, touched: Relation) -> Relation:
        stored = renamed(self.layout.state, OLD)
        joined = OuterJoin("left", touched, stored, self._same_key("", OLD))
        return self._finished(self._merged(joined), stored)

    def _merged(self, joined: Relation) -> Relation:
        """Add the new accumulators to the old ones: sums and counts first, since extremes refer to the new counts."""
        for simple in (True, False):
            values: dict[str, exp.Expr] = {}
            for accumulator in self.accumulators:
                if isinstance(accumulator, CountOf | SumOf) == simple:
                    values |= accumulator.merge()
            if not simple:
                values[MORE.name] = self._must_recompute()
            types = {c.name: c for c in (*self._state_columns, MORE)}
            items = tuple(Item(e, types[n]) for n, e in values.items())
            joined = Project(joined, add_columns(joined, items))
        return joined

    def _must_recompute(self) -> exp.Expr:
        reasons = [r for a in self.accumulators if (r := a.must_recompute()) is not None]
        if not reasons:
            return exp.false()
        return cast(all_of([not_(self._is_dead()), coalesce(any_of(reasons), exp.false())]), "boolean")

    def _is_dead(self) -> exp.Expr:
        if not self.body.keys:
            return exp.false()
        return compare(exp.EQ, col(naming.GROUP_ROWS), ZERO)

    # Groups that must be read again

    def _recomputed(self, source: Relation) -> Relation:
        """Read the groups marked with MORE again; their sums and counts are known, the rest is computed."""
        marked = Filter(self._changes_table(), col(MORE.name))
        keys = tuple(i.column.name for i in self.body.keys)
        if keys:
            wanted = renamed(distinct_columns(marked, keys), FRESH)
            source = SemiJoin(source, wanted, self._same_key("", FRESH))
        again = [a for a in self.accumulators if a.must_recompute() is not None]
        expressions = [i.expression for i in self.body.keys]
        prepared = [i for a in again for i in a.prepare_compute(expressions)]
        if prepared:
            source = Project(source, add_columns(source, prepared))
        grouped = Aggregate(source, self.body.keys, tuple(i for a in again for i in a.recompute()))
        fresh = renamed(grouped, FRESH)
        joined = OuterJoin("left", marked, fresh, self._same_key("", FRESH))
        replaced = {c.name for a in again for c in a.columns}
        items = tuple(
            Item(exp.false() if c == MORE else col(c.name + FRESH if c.name in replaced else c.name), c)
            for c in (*self._state_columns, *self._old_columns, MORE)
        )
        return self._finished(Project(joined, items), renamed(self.layout.state, OLD))

    # Stored rows to replace

    @property
    def _old_columns(self) -> tuple[Column, ...]:
        return tuple(Column(c.name + OLD, c.type) for c in self.layout.state.schema)

    def _changes_table(self) -> Table:
        return Table(CHANGES, (*self.layout.columns, *self._old_columns, MORE, STORE, SHOWN))

    def _finished(self, merged: Relation, stored: Relation) -> Relation:
        """Add the outputs, and what happens to each row; drop unchanged rows."""
        with_outputs = self._with_outputs(merged, {c.name: col(c.name) for c in (*stored.schema, MORE)})
        store, shown = self._store(), self._shown()
        final = Project(with_outputs, add_columns(with_outputs, [Item(store, STORE), Item(shown, SHOWN)]))
        return Filter(final, compare(exp.NEQ, col(STORE.name), exp.Literal.string("none")))

    def _with_outputs(self, grouped: Relation, kept: Mapping[str, exp.Expr]) -> Relation:
        """The stored columns, computed from the state; outputs only for groups that have rows and are visible."""
        types = {c.name: c for c in grouped.schema}
        alive: list[exp.Expr] = []
        if kept:
            alive = [not_(self._is_dead()), not_(col(MORE.name))]
        visible: exp.Expr | None = None
        if self.having is not None:
            visible = cast(coalesce(substitute(self.having, self._over_state), exp.false()), "boolean")
            visible = when(all_of(alive), visible, exp.false()) if alive else visible
            alive = [*alive, substitute(self.having, self._over_state)]
        items = [Item(col(c.name), c) for c in self._state_columns]
        items += [Item(when(all_of(alive), i.expression) if alive else i.expression, i.column) for i in self._computed]
        if visible is not None:
            items.append(Item(visible, VISIBLE))
        items += [Item(e, types[n]) for n, e in kept.items()]
        return Project(grouped, tuple(items))

    def _store(self) -> exp.Expr:
        existed = not_(is_null(col(naming.FILE + OLD)))
        unchanged = identical(self.layout.columns, "", OLD)
        return _labels(
            (col(MORE.name), "recompute"),
            (all_of([self._is_dead(), existed]), "delete"),
            (self._is_dead(), "none"),
            (not_(existed), "insert"),
            (unchanged, "none"),
            default="update",
        )

    def _shown(self) -> exp.Expr:
        existed = not_(is_null(col(naming.FILE + OLD)))
        before, after = existed, not_(self._is_dead())
        if self.having is not None:
            before = all_of([existed, coalesce(col(naming.VISIBLE + OLD), exp.false())])
            after = all_of([after, col(naming.VISIBLE)])
        equal = identical((c for c in self.layout.columns if c.name in self.layout.outputs), "", OLD)
        return _labels(
            (col(MORE.name), "none"),
            (all_of([not_(before), not_(after)]), "none"),
            (not_(before), "insert"),
            (not_(after), "delete"),
            (equal, "none"),
            default="update",
        )

    def _same_key(self, left: str, right: str) -> exp.Expr:
        return all_of(same(col(i.column.name + left), col(i.column.name + right)) for i in self.body.keys)


def _labels(*labels: tuple[exp.Expr, str], default: str) -> exp.Expr:
    """The label of the first condition that is true."""
    branches = ((condition, exp.Literal.string(label)) for condition, label in labels)
    return cases(*branches, otherwise=exp.Literal.string(default))
