"""The frame of differentiation: three views of a relation, and the table of rules.

For a relation `x` of the query and the set of inputs that changed since the last refresh:

- `new(x)` is its value now, read from the inputs at the new frontier;
- `delta(x)` is the Z-set that leads from the old value to the new one, or None where it is certainly empty;
- `old(x)` is `new(x)` minus `delta(x)`. It is never read from an old version of a table.

The current time is one more input, `naming.CLOCK`, for relations that ask for it.

A rule turns an operator into the operators of its delta. Rules are pure and know neither Spark nor a database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.diff.zset import negate, plus
from millstream.naming import CLOCK
from millstream.ops import Column, Item, Project, Relation, Scan, Table, clock
from millstream.ops.expressions import col, keep
from millstream.ops.relations import WEIGHT_COLUMN
from millstream.ops.walk import with_children

Rule = Callable[["Difference", Relation], Relation | None]

RULES: dict[type[Relation], Rule] = {}
STRATEGIES: dict[type[Relation], str] = {}


def rule(operator: type[Relation], strategy: str) -> Callable[[Rule], Rule]:
    """Register the delta rule of an operator; `strategy` is what `explain` says of it."""

    def register(function: Rule) -> Rule:
        RULES[operator] = function
        STRATEGIES[operator] = strategy
        return function

    return register


@dataclass(frozen=True)
class Difference:
    """The views of a query's relations while a given set of inputs has changed.

    Each view of a relation is built once, so that what a plan reads in several places is one relation there.
    """

    changed: frozenset[str]
    _new: dict[Relation, Relation] = field(default_factory=dict, init=False, repr=False, compare=False)
    _delta: dict[Relation, Relation | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def new(self, relation: Relation) -> Relation:
        """The relation over the inputs at the new frontier."""
        if relation not in self._new:
            children = tuple(self.new(child) for child in relation.children)
            self._new[relation] = (
                new_table(relation) if isinstance(relation, Scan) else clock.now(with_children(relation, children))
            )
        return self._new[relation]

    def delta(self, relation: Relation) -> Relation | None:
        """The change of the relation; None where no input of it changed."""
        if relation not in self._delta:
            found = RULES.get(type(relation))
            if found is None:
                raise TypeError(f"no delta rule for {type(relation).__name__} inside a stage")
            self._delta[relation] = found(self, relation)
        return self._delta[relation]

    def old(self, relation: Relation) -> Relation:
        """The relation as it was, as a Z-set that is not consolidated; plain where it did not change."""
        change = self.delta(relation)
        return self.new(relation) if change is None else plus([self.new(relation), negate(change)])

    @property
    def time_moved(self) -> bool:
        """Whether the time is another one than that of the old values."""
        return CLOCK in self.changed

    @property
    def before(self) -> exp.Expr:
        """The time of the old values."""
        return clock.BEFORE if self.time_moved else clock.NOW


def new_table(scan: Scan) -> Relation:
    """The input at the new frontier, under the names the query uses."""
    return _named(scan, new_name(scan.source), ())


def delta_table(scan: Scan) -> Relation:
    """The input's change feed since the last frontier."""
    return _named(scan, delta_name(scan.source), (WEIGHT_COLUMN,))


def new_name(source: str) -> str:
    """The relation that holds an input at the new frontier."""
    return "new_" + _plain(source)


def delta_name(source: str) -> str:
    """The relation that holds an input's changes."""
    return "delta_" + _plain(source)


def _plain(source: str) -> str:
    """A source's name as one word, another one for each source: no name begins with a digit.

    >>> _plain("sales.orders"), _plain("sales_orders")
    ('5_sales_orders', 'sales_orders')
    """
    schema, dot, name = source.partition(".")
    return f"{len(schema)}_{schema}_{name}" if dot else source


def _named(scan: Scan, table: str, extra: tuple[Column, ...]) -> Relation:
    # two columns may be one in the stored table of a hidden stage, e.g. COUNT(*) and COUNT(1)
    stored = tuple(dict.fromkeys(Column(o, c.type) for o, c in zip(scan.origin, scan.output, strict=True)))
    items = tuple(Item(col(o), c) for o, c in zip(scan.origin, scan.output, strict=True))
    return Project(Table(table, (*stored, *extra)), (*items, *keep(extra)))
