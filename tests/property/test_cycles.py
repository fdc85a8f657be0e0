"""Random monotone programs of three tables that read each other, over random graphs, against a naive fixpoint.

Edges are deleted while the paths that they supported still support each other.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.duck_cycle import DuckCycle
from millstream.diff import circular
from millstream.diff.difference import Difference
from millstream.diff.plan import Step
from millstream.ops import Column
from millstream.planner import cycle_choice
from millstream.planner.cycle_choice import Start
from millstream.testing.choices import Choices

CASES = 20
PAIR = (Column("a", "smallint"), Column("b", "smallint"))
BASE = {"e": PAIR, "f": PAIR}
MEMBERS = ("p", "q", "r")
TERMS = (
    "SELECT a, b FROM {base}",
    "SELECT x.a, y.b FROM {base} x JOIN {m} y ON x.b = y.a",
    "SELECT b, a FROM {m}",
    "SELECT x.a, y.b FROM {m} x JOIN {n} y ON x.b = y.a",
    "SELECT x.a, z.b FROM {m} x JOIN {base} y ON x.b = y.a JOIN {n} z ON y.b = z.a WHERE x.a <> z.b",
    "SELECT a, b FROM {m} x WHERE EXISTS (SELECT 1 FROM {n} y WHERE y.a = x.b)",
    "SELECT a, b FROM {base} WHERE b IN (SELECT a FROM {m})",
    "SELECT a, b FROM {m} INTERSECT SELECT a, b FROM {n}",
    "SELECT x.a, y.b FROM (SELECT DISTINCT a, b FROM {m}) x JOIN {n} y ON x.a <=> y.a",
)
REACH = {
    "p": "SELECT a, b FROM e UNION SELECT x.a, y.b FROM e x JOIN q y ON x.b = y.a",
    "q": "SELECT a, b FROM f UNION SELECT x.a, y.b FROM p x JOIN p y ON x.b = y.a",
}


def program(choices: Choices) -> dict[str, str]:
    """Each table reads a base table and tables of the cycle, in one to three terms besides."""
    queries: dict[str, str] = {}
    for number, name in enumerate(MEMBERS):
        after = MEMBERS[(number + 1) % len(MEMBERS)]
        terms = [TERMS[0], *choices.some(TERMS, 3)] if choices.chance(2) else choices.some(TERMS, 3)
        texts = [
            term.format(base=choices.pick(list(BASE)), m=choices.pick([after, *MEMBERS]), n=choices.pick(MEMBERS))
            for term in [*terms, "SELECT b, a FROM {m} WHERE a > 1"]
        ]
        queries[name] = " UNION ".join(f"SELECT * FROM ({text})" for text in texts)
    return queries


def follow(cycle: DuckCycle, choices: Choices, steps: int = 5) -> None:
    """Change the base tables, in small steps or several at once, and compare after each."""
    for _ in range(steps):
        batch: dict[str, list[tuple[tuple[int | None, ...], int]]] = {name: [] for name in BASE}
        present = {name: Counter(rows) for name, rows in cycle.rows.items()}
        for _ in range(choices.pick((1, 1, 2, 5))):
            name = choices.pick(list(BASE))
            there = sorted((+present[name]).elements(), key=str)
            if there and choices.chance(2):
                gone = choices.pick(there)
                batch[name].append((gone, -1))
                present[name][gone] -= 1
                if choices.chance(2):
                    continue  # otherwise it is an update
            row = tuple(None if choices.chance(12) else choices.number(0, 4) for _ in PAIR)
            batch[name].append((row, 1))
            present[name][row] += 1
        cycle.change(batch)
        assert cycle.contents == cycle.expected(), cycle.queries


@settings(max_examples=8, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_members_are_the_least_fixpoint(data: st.DataObject) -> None:
    choices = Choices(lambda least, most: data.draw(st.integers(least, most)))
    follow(DuckCycle(BASE, program(choices), PAIR), choices, steps=3)


def test_seeded_programs() -> None:
    starts = Counter[Start]()
    for seed in range(CASES):
        choices = Choices.seeded(seed)
        cycle = DuckCycle(BASE, program(choices), PAIR)
        follow(cycle, choices)
        starts.update(cycle.starts)
    assert min(starts[start] for start in Start) > CASES / 2, starts


@pytest.mark.long
def test_many_seeded_programs() -> None:
    for seed in range(1_000, 3_000):
        choices = Choices.seeded(seed)
        follow(DuckCycle(BASE, program(choices), PAIR), choices)


def test_edges_that_support_each_other() -> None:
    cycle = DuckCycle(BASE, REACH, PAIR)
    cycle.change({"e": [((1, 2), 1), ((2, 1), 1), ((2, 3), 1)], "f": [((3, 1), 1)]})
    assert cycle.contents == cycle.expected()
    cycle.change({"e": [((1, 2), -1)]})
    assert cycle.contents == cycle.expected()
    assert (1, 3) not in cycle.contents["p"] | cycle.contents["q"]
    cycle.change({"e": [((2, 3), -1), ((2, 1), -1)], "f": [((3, 1), -1)]})
    assert cycle.contents == {"p": set(), "q": set()}


# Negative controls: what the tests above must notice


def always_from_stored(facts: cycle_choice.CycleFacts) -> cycle_choice.CycleChoice:
    return cycle_choice.CycleChoice(cycle_choice.choose_for_cycle(facts).choice, Start.STORED)


def skips_joint_rounds(self: circular.Member, changed: frozenset[str]) -> Step | None:
    """A round in which several members gained rows is skipped."""
    change = Difference(changed).delta(self._rows)
    return None if change is None or len(changed) > 1 else Step(circular.FOUND, self._new_rows(change))


@pytest.mark.parametrize("broken", ["restart", "round"])
def test_a_bug_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "restart":
        monkeypatch.setattr("kits.duck_cycle.choose_for_cycle", always_from_stored)
    else:
        monkeypatch.setattr(circular.Member, "gained", functools.partialmethod(skips_joint_rounds))
    with pytest.raises(AssertionError):
        test_seeded_programs()
