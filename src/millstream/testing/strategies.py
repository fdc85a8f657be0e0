"""Random source tables and random changes to them.

Values come from small domains, so that keys match, rows repeat and NULLs are common. A change is one number, decoded
against the rows that exist at that time: a batch never removes rows that do not exist, and shrinks well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from millstream.ops import Column
from millstream.testing.choices import Choices
from millstream.testing.values import Row

Weighted = list[tuple[Row, int]]
Tables = Mapping[str, tuple[Column, ...]]

TABLES: dict[str, tuple[Column, ...]] = {
    "t": (Column("a", "int"), Column("b", "int"), Column("s", "string")),
    "u": (Column("a", "int"), Column("c", "int"), Column("d", "decimal(10,2)")),
    "v": (Column("k", "int"), Column("e", "bigint"), Column("s", "string")),
}

_DOMAINS: dict[str, tuple[Any, ...]] = {
    "smallint": (1, 2, 3, 4, 5, None),  # the nodes of graphs
    "int": (1, 2, 3, None),
    "bigint": (1, 2, 5, None),
    "string": ("x", "y", None),
    "timestamp": (*(datetime(2024, 1, 1, hour) for hour in (0, 1, 2, 5)), datetime(2024, 1, 2), None),
    "date": (date(2024, 1, 1), date(2024, 1, 2), None),
    "decimal(10,2)": (Decimal("1.50"), Decimal("2.25"), Decimal("-0.75"), None),
}
_KINDS = ("insert", "delete", "update", "insert", "delete", "update", "many", "purge", "noop", "touch", "all")
_MOST = 2**16 - 1
_HOURS = (1, 0, 2, 4, 24, -1)


@dataclass(frozen=True)
class Step:
    """A batch of changes, whether a refresh follows before the next batch, and how many hours pass."""

    changes: Mapping[str, Weighted]
    refreshes: bool
    hours: int = 0


@dataclass(frozen=True)
class Scenario:
    """What happens to the sources: the rows of the initial load, then batches."""

    initial: Mapping[str, Weighted]
    steps: Sequence[Step]


@st.composite
def scenarios(
    draw: st.DrawFn, tables: Tables, *, max_rows: int = 7, max_steps: int = 4, time_passes: bool = False
) -> Scenario:
    """Random initial rows and batches of inserts, updates and deletes on several tables at once."""
    choices = Choices.drawn(draw)
    return make_scenario(choices, tables, max_rows=max_rows, max_steps=max_steps, time_passes=time_passes)


def make_scenario(
    choices: Choices, tables: Tables, *, max_rows: int = 7, max_steps: int = 4, time_passes: bool = False
) -> Scenario:
    """A scenario from the given choices.

    Without a refresh between them, batches form one big step; with a refresh after each, many small ones. If time
    passes, there are also steps in which nothing else happens.
    """
    contents: dict[str, Counter[Row]] = {}
    initial: dict[str, Weighted] = {}
    for name, columns in tables.items():
        rows = [(_row(columns, choices.number(0, _MOST)), 1) for _ in range(choices.number(0, max_rows))]
        contents[name], initial[name] = Counter(row for row, _ in rows), rows
    steps: list[Step] = []
    for _ in range(choices.number(1, max_steps)):
        changes: dict[str, Weighted] = {}
        for _ in range(choices.number(0 if time_passes else 1, 5)):
            name = choices.pick(list(tables))
            changes.setdefault(name, []).extend(_change(tables[name], contents[name], choices.number(0, _MOST)))
        hours = choices.pick(_HOURS) if time_passes else 0
        steps.append(Step(changes, refreshes=choices.chance(2), hours=hours))
    return Scenario(initial, steps)


def _change(columns: tuple[Column, ...], contents: Counter[Row], number: int) -> Weighted:
    """Decode a number as a change, apply it to the contents, and return it as weighted rows."""
    number, kind = divmod(number, len(_KINDS))
    number, place = divmod(number, 16)
    row = _row(columns, number)
    there = sorted(contents.elements(), key=repr)
    picked = there[place % len(there)] if there else None
    rows = _weighted(_KINDS[kind], row, picked, there, place)
    for changed, weight in rows:
        contents[changed] += weight
    return rows


def _weighted(kind: str, row: Row, picked: Row | None, there: list[Row], place: int) -> Weighted:
    if kind == "many":
        return [(row, 2 + place % 2)]
    if kind == "noop":
        return [(row, 1), (row, -1)]
    if kind == "insert" or picked is None:
        return [(row, 1)]
    match kind:
        case "delete":
            return [(picked, -1)]
        case "update":
            return [(picked, -1), (row, 1)]
        case "touch":
            return [(picked, -1), (picked, 1)]
        case "all":
            return [(picked, -there.count(picked))]
    # purge: a whole group, or all partners of a join key, is removed in one change
    return [(r, -n) for r, n in Counter(there).items() if r[0] == picked[0]]


def _row(columns: tuple[Column, ...], number: int) -> Row:
    values: list[Any] = []
    for column in columns:
        domain = _DOMAINS[column.type]
        number, place = divmod(number, len(domain))
        values.append(domain[place])
    return tuple(values)
