"""Differentiation: three views of a relation, built with the table of rules.

For a relation `x` of the query and the set of inputs that changed since the last refresh:

- `new(x)` is its value now, read from the inputs at the new frontier;
- `delta(x)` is the Z-set that leads from the old value to the new one, or None if it is certainly empty;
- `old(x)` is `new(x)` minus `delta(x)`. It is never read from an old version of a table.

The current time is one more input, `naming.CLOCK`, for relations that use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millstream.diff.inputs import new_table
from millstream.diff.rules import NoRule, rule_of
from millstream.diff.zset import negate, plus
from millstream.naming import CLOCK
from millstream.ops import Relation, Scan, clock


@dataclass(frozen=True)
class Difference:
    """The views of a query's relations when a given set of inputs has changed.

    Each view of a relation is built once, so that a plan that reads it in several places reads one relation.
    """

    changed: frozenset[str]
    _new: dict[Relation, Relation] = field(default_factory=dict, init=False, repr=False, compare=False)
    _delta: dict[Relation, Relation | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def new(self, relation: Relation) -> Relation:
        """The relation over the inputs at the new frontier."""
        if relation not in self._new:
            children = tuple(self.new(child) for child in relation.children)
            self._new[relation] = (
                new_table(relation) if isinstance(relation, Scan) else clock.now(relation.over(children))
            )
        return self._new[relation]

    def delta(self, relation: Relation) -> Relation | None:
        """The change of the relation; None if none of its inputs changed.

        Raises:
            TypeError: for an operator that has a stage instead of a rule.
        """
        if relation not in self._delta:
            rule = rule_of(relation)
            if isinstance(rule, NoRule):
                raise TypeError(f"no delta rule for {rule.operator.__name__} inside a stage: {rule.reason}")
            self._delta[relation] = rule.delta(self, relation)
        return self._delta[relation]

    def old(self, relation: Relation) -> Relation:
        """The relation before the change, as a Z-set that is not consolidated; unweighted if it did not change."""
        change = self.delta(relation)
        return self.new(relation) if change is None else plus([self.new(relation), negate(change)])

    @property
    def time_moved(self) -> bool:
        """Whether the time differs from that of the old values."""
        return CLOCK in self.changed

    @property
    def before(self) -> exp.Expr:
        """The time of the old values."""
        return clock.BEFORE if self.time_moved else clock.NOW
