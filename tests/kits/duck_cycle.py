"""A cycle of stream tables on DuckDB: the program of its rounds as on Spark, and a naive fixpoint as the oracle."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.diff.circular import Member, obstacle, run_rounds
from millstream.diff.inputs import delta_name, new_name
from millstream.diff.plan import Step
from millstream.naming import WEIGHT
from millstream.ops import Column, Relation
from millstream.planner import Change, InputFacts
from millstream.planner.cycle_choice import CycleFacts, Start, choose_for_cycle
from millstream.results import Action
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.testing import duck
from millstream.testing.analyzer import DuckAnalyzer, Tables, duck_type
from millstream.testing.duck import oracle_text, shared_connection
from millstream.testing.values import Row, values

if TYPE_CHECKING:
    import duckdb

Columns = tuple[Column, ...]
MOST_ROUNDS = 200


class EndlessError(Exception):
    """The rounds did not end."""


def lowered(query: str, tables: Mapping[str, Columns]) -> Relation:
    """The operators of a query."""
    analyzer = DuckAnalyzer(shared_connection())
    return rewrite(lower(parse_query(query), query, Tables(dict(tables)), analyzer).relation)


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    """A connection with temporary tables of its own: other tests have views under the same names."""
    db = shared_connection().cursor()
    db.execute("PRAGMA disable_optimizer; SET TimeZone = 'UTC'")
    return db


@dataclass
class DuckCycle:
    """Base tables with changes, and stream tables that read each other.

    Args:
        queries: by member; all have the same columns.
    """

    base: Mapping[str, Columns]
    queries: Mapping[str, str]
    columns: Columns
    db: duckdb.DuckDBPyConnection = field(default_factory=_connection)
    starts: list[Start] = field(default_factory=list)
    """Where the rounds of each refresh started."""

    def __post_init__(self) -> None:
        members = dict.fromkeys(self.queries, self.columns)
        tables = {**self.base, **members}
        self.members: dict[str, Member] = {}
        for name, query in self.queries.items():
            relation = lowered(query, tables)
            assert obstacle(relation, members) is None, query
            self.members[name] = Member(name, relation, self.columns)
        self.rows = {name: Counter[Row]() for name in self.base}
        self.contents: dict[str, set[Row]] = {name: set() for name in self.members}

    def change(self, batch: Mapping[str, list[tuple[Row, int]]]) -> None:
        """Change base tables, and bring the members to their fixpoint."""
        facts: list[InputFacts] = []
        for name, columns in self.base.items():
            change = Counter[Row]()
            for row, weight in batch.get(name, ()):
                change[row] += weight
            self.rows[name].update(change)
            assert min(self.rows[name].values(), default=0) >= 0, "the test removes rows that do not exist"
            self._create(new_name(name), columns, list(self.rows[name].elements()))
            weighted = [(*row, weight) for row, weight in change.items() if weight]
            self._create(delta_name(name), (*columns, Column(WEIGHT, "bigint")), weighted)
            kind = Change.MUTATED if any(w < 0 for w in change.values()) else Change.APPENDED
            facts.append(InputFacts(name, kind if weighted else Change.NOTHING))
        self.refresh(CycleFacts(facts))

    def refresh(self, facts: CycleFacts) -> None:
        """Run the rounds as the planner chooses."""
        chosen = choose_for_cycle(facts)
        if chosen.choice.action is Action.NO_DATA:
            return
        self.starts.append(chosen.start)
        first: dict[str, Step] = {}
        changed = frozenset(i.name for i in facts.inputs if i.change is not Change.NOTHING)
        if chosen.start is Start.EMPTY:
            self.contents = {name: set() for name in self.members}
        for name, member in self.members.items():
            self._create(new_name(name), self.columns, sorted(self.contents[name], key=str))
            step = member.over_empty() if chosen.start is Start.EMPTY else member.gained(changed)
            first |= {name: step} if step is not None else {}
        run_rounds(self.members, first, self._run, self._gain, _refuse_endless)

    def _run(self, _: str, step: Step) -> list[Row]:
        return self.db.execute(duck._sql(step.relation)).fetchall()

    def _gain(self, name: str, rows: list[Row]) -> int:
        assert len(set(rows)) == len(rows), "a round finds a row once"
        assert not self.contents[name].intersection(rows), "a round finds new rows only"
        self.contents[name].update(rows)
        if rows:
            weighted = (*self.columns, Column(WEIGHT, "bigint"))
            self._create(delta_name(name), weighted, [(*row, 1) for row in rows])
            self._create(new_name(name), self.columns, sorted(self.contents[name], key=str))
        return len(rows)

    def expected(self) -> dict[str, set[Row]]:
        """All queries repeated over all rows, by their own texts, until nothing changes."""
        found: dict[str, set[Row]] = {name: set() for name in self.members}
        texts = {name: oracle_text(parse_query(query)) for name, query in self.queries.items()}
        for name, columns in self.base.items():
            self._create(name, columns, list(self.rows[name].elements()))
        for _ in range(MOST_ROUNDS):
            for name, rows in found.items():
                self._create(name, self.columns, sorted(rows, key=str))
            following = {name: set(self.db.execute(text).fetchall()) for name, text in texts.items()}
            if following == found:
                return found
            found = following
        raise EndlessError

    def _create(self, name: str, columns: Columns, rows: list[Row]) -> None:
        typed = [(c.name, duck_type(c.type)) for c in columns]
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {values(typed, rows)}")


def _refuse_endless(rounds: int) -> None:
    if rounds > MOST_ROUNDS:
        raise EndlessError
