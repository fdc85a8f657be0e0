"""Circular stream tables: which queries can be members of a cycle, and the program that finds their least fixpoint.

Semantics: the smallest sets of rows for which every member equals its query over them and over the sources outside of
    the cycle. They exist, and repeating the queries from empty members finds them, if every query is monotone: more
    rows in what it reads never take a row away from it.
Delta rule: semi-naive. The first round is each query over empty members; or, if rows were only added outside, the
    change that these rows make to the stored members. Each further round is the change that the rows found in the last
    one make, `delta(query)` over the members that gained rows, without the rows that are known. It ends when no member
    has gained a row.
State kept: none beyond what each member stores.
Cost: one query for each member and round, over about as many rows as the round before has found.
NULL and duplicate behaviour: rows are compared with NULLs equal; a row counts once, however many derivations it has.
Falls back when: rows were taken away outside of the cycle. Rows that only support each other would stay, so the
    members start from empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from sqlglot import exp

from millstream.diff.difference import Difference
from millstream.diff.inputs import new_name
from millstream.diff.plan import Step
from millstream.diff.stages import is_distinguished
from millstream.diff.zset import consolidate, distinct_columns, renamed
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    OneRow,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
    Window,
    transform,
    walk,
)
from millstream.ops.clock import reads_clock
from millstream.ops.expressions import ZERO, all_of, col, compare, keep, same, weight
from millstream.ops.known import Known

FOUND = "found"
Rows = TypeVar("Rows")
_OTHER = "__ms_x"  # suffix of a column's name: its value in the known rows that rows are compared with


def obstacle(relation: Relation, members: Mapping[str, tuple[Column, ...]]) -> str | None:
    """Why a query cannot be a member of a cycle; None if it can.

    Args:
        members: the columns of the cycle's stream tables, by name.
    """
    for node in walk(relation):
        if (reason := _obstacle_at(node)) is not None:
            return reason
    for column in relation.columns:
        if not is_distinguished(column.type):
            return f"its column {column.name} has the type {column.type}, of which equal values may differ"
    # by induction over the rounds, every member is a set if its query returns one for sets
    keys = {name: Known(frozenset(c.name.lower() for c in columns)) for name, columns in members.items()}
    if relation.known(keys).key is None:
        return "it may return a row several times, as UNION ALL does, and around a cycle that never ends"
    return None


def _obstacle_at(node: Relation) -> str | None:
    """Why an operator cannot be part of a cycle, wherever it is in the query."""
    if reads_clock(node):
        return "it uses the current time, which takes rows away as it passes"
    match node:
        case Scan() | OneRow() | Filter() | Project() | Repeat() | InnerJoin() | SemiJoin() | UnionAll():
            return None
        case Aggregate(calls=(), keys=(_, *_)):
            return None  # DISTINCT
        case Aggregate():
            return "it aggregates, and a row that is added changes the result for its group"
        case AntiJoin():
            return "EXCEPT, NOT EXISTS, NOT IN or an anti join in it takes a row away when a partner is added"
        case OuterJoin():
            return "an outer join in it takes a row padded with NULLs away when a partner is added"
        case Window():
            return "a window function, LIMIT or QUALIFY in it changes or takes rows away when others are added"
        case Recursion():
            return "it contains WITH RECURSIVE"
        case Table():
            return "it reads a table that exists only while a plan runs"
    assert_never(node)


@dataclass(frozen=True)
class Member:
    """A stream table of a cycle.

    Args:
        query: its query, which has no `obstacle`.
        columns: its columns, under the names by which the other members read them.
    """

    name: str
    query: Relation
    columns: tuple[Column, ...]
    _steps: dict[frozenset[str], Step | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def over_empty(self) -> Step:
        """The rows of the query, each once; the caller binds empty tables for the members."""
        rows = Difference(frozenset()).new(self._rows)
        return Step(FOUND, distinct_columns(rows, [c.name for c in self.columns]))

    def gained(self, changed: frozenset[str]) -> Step | None:
        """The rows that the query gains through rows added to some inputs, without those that the member has.

        None if it reads none of these inputs.
        """
        if changed not in self._steps:
            change = Difference(changed).delta(self._rows)
            self._steps[changed] = None if change is None else Step(FOUND, self._new_rows(change))
        return self._steps[changed]

    @property
    def _rows(self) -> Relation:
        """The query as a set: a DISTINCT inside it changes nothing, since equal rows are merged at the end."""
        plain = transform(self.query, _without_distinct)
        names = zip(plain.columns, self.columns, strict=True)
        return Project(plain, tuple(Item(col(c.name), named) for c, named in names))

    def _new_rows(self, change: Relation) -> Relation:
        gained = Project(Filter(consolidate(change), compare(exp.GT, weight(), ZERO)), keep(self.columns))
        known = renamed(Table(new_name(self.name), self.columns), _OTHER)
        return AntiJoin(gained, known, all_of(same(col(c.name), col(c.name + _OTHER)) for c in self.columns))


def _without_distinct(node: Relation) -> Relation:
    return Project(node.input, node.keys) if isinstance(node, Aggregate) else node


def run_rounds(
    members: Mapping[str, Member],
    first: Mapping[str, Step],
    run: Callable[[str, Step], Rows],
    gain: Callable[[str, Rows], int],
    check: Callable[[int], None],
) -> int:
    """Repeat the members' queries over the rows found last, until no member gains one; returns the number of rounds.

    Args:
        first: the steps of the first round, by member.
        run: runs a step of a member over what is bound.
        gain: adds rows to a member's known ones, binds these and, as its change, the new ones; returns their number.
        check: called before each further round with the number of those that have ended; may raise.
    """
    results = {name: run(name, step) for name, step in first.items()}
    rounds = 1
    # all steps of a round read what was known before it
    while gained := frozenset(name for name, rows in results.items() if gain(name, rows)):
        check(rounds)
        steps = {name: member.gained(gained) for name, member in members.items()}
        results = {name: run(name, step) for name, step in steps.items() if step is not None}
        rounds += 1
    return rounds
