"""The rows that the step of a recursion gains and loses through a change, as sets: they maintain UNION.

Weights do not help there. A row that lost one derivation and gained another has as many as before, and yet it must be
removed if the new one starts from the row itself. So gained and lost derivations are kept apart:

- `now(x)` is the relation over the inputs at the new frontier, and over given rows in place of the recursion's own;
- `gained(x)` is the rows of `now(x)` with a derivation that did not exist before;
- `lost(x)` is all rows with a derivation that no longer exists, and perhaps others: its users check whether a row is
  stored, and whether it has another derivation;
- `ever(x)` is all rows that exist now or existed before.

Only the operators between the top of the step and the place where it reads the recursion need rules here. A relation
that does not read the recursion is an input whose weighted change is known: a gained row has a positive net weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from sqlglot import exp

from millstream.diff.difference import Difference
from millstream.diff.zset import consolidate
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    Opaque,
    OuterJoin,
    Project,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    UnionAll,
    clock,
    walk,
)
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import ZERO, col, compare, keep, null, weight
from millstream.ops.join_order import connected_order

_Alike = Scan | Filter | Project | Repeat | UnionAll | OuterJoin
"""The operators whose gains follow from gains exactly as their losses follow from losses."""

PATH = _Alike | InnerJoin | SemiJoin | AntiJoin
"""The operators that have rules here."""


def reads(relation: Relation, reference: str) -> bool:
    """Whether a relation reads the recursion."""
    return any(isinstance(node, Scan) and node.source == reference for node in walk(relation))


def has_rules(relation: Relation, reference: str) -> bool:
    """Whether all operators that read the recursion have rules here; those that use the current time have none."""
    return all(isinstance(n, PATH) and not reads_clock(n) for n in walk(relation) if reads(n, reference))


@dataclass(frozen=True)
class Turnover:
    """Gains and losses of a step's relations when a set of inputs has changed.

    Args:
        rows: the relation read in place of the recursion, with the same column names; it is taken as unchanged.
        are_few: whether these rows are few, so that joins should start from them.
    """

    difference: Difference
    reference: str
    rows: Relation
    are_few: bool = False
    _gained: dict[Relation, Relation | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lost: dict[Relation, Relation | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def now(self, relation: Relation) -> Relation:
        """The relation over the new inputs."""
        if not reads(relation, self.reference):
            return self.difference.new(relation)
        if isinstance(relation, Scan):
            names = zip(relation.origin, relation.output, strict=True)
            return Project(self.rows, tuple(Item(col(origin), column) for origin, column in names))
        if isinstance(relation, InnerJoin) and self.are_few:
            few = next(i for i in relation.inputs if reads(i, self.reference))
            return self._from(few, self.now(few), relation, self.now)
        return clock.now(relation.over(tuple(self.now(child) for child in relation.children)))

    def ever(self, relation: Relation) -> Relation:
        """The rows that exist now, and the lost rows."""
        lost = self.lost(relation)
        return self.now(relation) if lost is None else UnionAll((self.now(relation), lost))

    def gained(self, relation: Relation) -> Relation | None:
        """The gained rows."""
        if relation not in self._gained:
            self._gained[relation] = self._changed(relation, self._gain, comes=True)
        return self._gained[relation]

    def lost(self, relation: Relation) -> Relation | None:
        """The rows that may be lost."""
        if relation not in self._lost:
            self._lost[relation] = self._changed(relation, self._loss, comes=False)
        return self._lost[relation]

    def _changed(self, relation: Relation, rule: _Rule, *, comes: bool) -> Relation | None:
        if not reads(relation, self.reference):
            change = self.difference.delta(relation)
            if change is None:
                return None
            side = compare(exp.GT if comes else exp.LT, weight(), ZERO)
            return Project(Filter(consolidate(change), side), keep(relation.columns))
        parts = [Project(part, keep(relation.columns)) for part in rule(relation) if part is not None]
        return None if not parts else parts[0] if len(parts) == 1 else UnionAll(tuple(parts))

    # The rules

    def _gain(self, relation: Relation) -> list[Relation | None]:
        match relation:
            case InnerJoin():
                return [self._from(i, rows, relation, self.now) for i in relation.inputs if (rows := self.gained(i))]
            case SemiJoin(left=left, right=right, condition=condition):
                return [
                    _joined(SemiJoin, self.gained(left), self.now(right), condition),
                    _joined(SemiJoin, self.now(left), self.gained(right), condition),
                ]
            case AntiJoin(left=left, right=right, condition=condition):
                freed = _joined(SemiJoin, self.now(left), self.lost(right), condition)
                return [_joined(AntiJoin, r, self.now(right), condition) for r in (self.gained(left), freed)]
            case Scan() | Filter() | Project() | Repeat() | UnionAll() | OuterJoin():
                return self._alike(relation, self.gained)
            case Aggregate() | Opaque():
                raise _without_rule(relation)
        assert_never(relation)

    def _loss(self, relation: Relation) -> list[Relation | None]:
        match relation:
            case InnerJoin():
                return [self._from(i, rows, relation, self.ever) for i in relation.inputs if (rows := self.lost(i))]
            case SemiJoin(left=left, right=right, condition=condition):
                return [
                    _joined(SemiJoin, self.lost(left), self.ever(right), condition),
                    _joined(SemiJoin, self.ever(left), self.lost(right), condition),
                ]
            case AntiJoin(left=left, right=right, condition=condition):
                return [self.lost(left), _joined(SemiJoin, self.ever(left), self.gained(right), condition)]
            case Scan() | Filter() | Project() | Repeat() | UnionAll() | OuterJoin():
                return self._alike(relation, self.lost)
            case Aggregate() | Opaque():
                raise _without_rule(relation)
        assert_never(relation)

    def _alike(self, relation: _Alike, changed: _Change) -> list[Relation | None]:
        """The gains, if `changed` is `gained`, or the losses, if it is `lost`."""
        match relation:
            case Filter():
                rows = changed(relation.input)
                return [None if rows is None else Filter(rows, relation.predicate)]
            case Project():
                rows = changed(relation.input)
                return [None if rows is None else Project(rows, relation.items)]
            case Repeat():
                rows = changed(relation.input)
                return [None if rows is None else Repeat(rows, relation.count, relation.number)]
            case UnionAll():
                found = [changed(i) for i in relation.inputs]
                return [_named_like(rows, relation.columns) for rows in found if rows is not None]
            case OuterJoin(left=left, right=right, condition=condition):
                padded = changed(AntiJoin(left, right, condition))
                return [changed(InnerJoin((left, right), (condition,))), _padded(padded, relation.columns)]
            case Scan():
                return []  # the rows of the recursion are taken as unchanged
        assert_never(relation)

    def _from(self, start: Relation, rows: Relation, join: InnerJoin, others: _Value) -> Relation:
        """The join with some rows in place of one input, joined outward from them."""
        rest = [others(i) for i in join.inputs if i is not start]
        joined = InnerJoin(tuple(connected_order(rows, rest, join.conditions)), join.conditions, small_first=True)
        return Project(joined, keep(join.columns))


def _without_rule(relation: Relation) -> TypeError:
    return TypeError(f"{type(relation).__name__} has no rule for what a recursion gains and loses")


_Value = Callable[[Relation], Relation]
_Change = Callable[[Relation], Relation | None]
_Rule = Callable[[Relation], Sequence[Relation | None]]


def _joined(
    join: type[SemiJoin | AntiJoin], left: Relation | None, right: Relation | None, condition: exp.Expr
) -> Relation | None:
    return None if left is None or right is None else join(left, right, condition)


def _named_like(rows: Relation, columns: tuple[Column, ...]) -> Relation:
    return Project(rows, tuple(Item(col(c.name), named) for c, named in zip(rows.columns, columns, strict=True)))


def _padded(rows: Relation | None, columns: tuple[Column, ...]) -> Relation | None:
    """Rows of the left side as rows of an outer join."""
    if rows is None:
        return None
    known = {c.name for c in rows.columns}
    return Project(rows, tuple(Item(col(c.name) if c.name in known else null(c.type), c) for c in columns))
