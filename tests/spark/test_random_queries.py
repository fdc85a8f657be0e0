"""A sample of the property tests' random queries and changes, through the real engines.

The oracle of the property tests is DuckDB; here the same queries meet Spark's own semantics, Delta's change feeds and
the stored tables. A fixed seed: a run that fails can be run again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from millstream.testing.queries import queries
from millstream.testing.strategies import TABLES, Scenario, scenarios

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

Case = tuple[str, Scenario]


def drawn(count: int, number: int) -> list[Case]:
    """Draw cases without running anything: the lake they run in is made once."""
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(queries(TABLES), scenarios(TABLES, max_rows=6, max_steps=2)))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def write(lake: Lake, name: str, rows: list[tuple[tuple[Any, ...], int]]) -> None:
    """Apply weighted rows to the table behind a view; an id identifies one of several equal rows."""
    added = [row for row, weight in rows for _ in range(max(weight, 0))]
    going = [row for row, weight in rows for _ in range(max(-weight, 0))]
    for row in list(going):
        if row in added:  # a row that comes and goes within a batch never was
            added.remove(row)
            going.remove(row)
    columns = ", ".join(f"{c.name} {c.type}" for c in TABLES[name])
    spark = lake.ms.spark
    for row in going:
        condition = " AND ".join(f"t.{c.name} <=> {_literal(v)}" for c, v in zip(TABLES[name], row, strict=True))
        ids = [r[0] for r in spark.sql(f"SELECT MIN(id) FROM {name}_rows t WHERE {condition}").collect()]
        lake.sql(f"DELETE FROM {name}_rows WHERE id = {ids[0]}")
    if added:
        frame = spark.createDataFrame([(random.getrandbits(60), *r) for r in added], f"id BIGINT, {columns}")
        frame.write.format("delta").mode("append").saveAsTable(f"{name}_rows")


def _literal(value: object) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def change(lake: Lake, batch: Mapping[str, list[tuple[tuple[Any, ...], int]]]) -> None:
    for name, rows in batch.items():
        write(lake, name, rows)


@pytest.mark.filterwarnings("ignore:.* has no fixed result")
@pytest.mark.parametrize(
    "number", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_random_queries(lake: Lake, number: int) -> None:
    cases = drawn(14, number)
    for name, columns in TABLES.items():
        lake.table(f"{name}_rows", "id BIGINT, " + ", ".join(f"{c.name} {c.type}" for c in columns))
        lake.sql(f"CREATE VIEW {name} AS SELECT {', '.join(c.name for c in columns)} FROM {name}_rows")
    change(lake, cases[0][1].initial)
    for position, (query, _) in enumerate(cases):
        lake.stream(f"st{position}", query)
    for step in cases[0][1].steps[:2]:
        change(lake, step.changes)
        lake.refresh_all(expected=None)
    for name in lake.queries:  # a delta that fails would be recomputed, and be right
        assert [r.reason for r in lake.ms.refresh_history(name) if r.action == "FULL"][:-1] == [], name
