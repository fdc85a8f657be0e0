"""Nexmark's queries as stream tables that may not be recomputed, through cycles of events, corrections, withdrawals.

DuckDB judges each cycle, the product's own `verify` the last one; the long run has more events and `verify` each time.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from kits.duck_oracle import DuckOracle
from kits.nexmark_events import Events
from kits.nexmark_queries import QUERIES
from millstream import Action
from millstream.notices import NoticeWarning

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

CYCLES = 10


def test_short(lake: Lake) -> None:
    follow(lake, events=2_000, cycles=2, verified={2})


@pytest.mark.long
def test_long(lake: Lake) -> None:
    follow(lake, events=50_000, cycles=CYCLES, verified=set(range(1, CYCLES + 1)))


def follow(lake: Lake, events: int, cycles: int, verified: set[int]) -> None:
    """Change, refresh and compare, cycle by cycle."""
    source, oracle = Events(lake.ms), DuckOracle(lake.ms)
    source.create()
    source.arrive(events)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        for name, text in QUERIES.items():
            lake.ms.create_stream_table(name, text, refresh_mode="DIFFERENTIAL STRICT")
    wrong: list[str] = []
    moved = dict.fromkeys(QUERIES, 0)
    for cycle in range(1, cycles + 1):
        source.go_on(events // 10)
        oracle.copy(("person", "auction", "bid", "hop"))
        for name, text in QUERIES.items():
            result = lake.ms.refresh_stream_table(name)
            moved[name] += result.rows_inserted + result.rows_updated + result.rows_deleted
            if result.action not in {Action.DIFFERENTIAL, Action.APPEND_ONLY}:
                wrong.append(f"cycle {cycle}: {name}: {result.action} ({result.reason})")
            if found := oracle.difference(name, text):
                wrong.append(f"cycle {cycle}: {found}")
            if cycle in verified and not (verdict := lake.ms.verify(name)).ok:
                wrong.append(f"cycle {cycle}: {name}: {verdict}")
    assert not wrong, "\n".join(wrong)
    assert [name for name, rows in moved.items() if not rows] == [], "these never changed, so that nothing is shown"
