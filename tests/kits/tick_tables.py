"""Two captured tables, one with a key and one without, and the captures of them: fixtures of tests of ticks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop

Owner = psycopg.Connection[Any]


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2), unused text)",
            "INSERT INTO t SELECT i, 'v' || i, i, 'u' FROM generate_series(1, 20) i",
            "CREATE TABLE bag (v text, d float8)",
            "INSERT INTO bag VALUES ('a', 0), ('a', 0), ('a', '-0'), (NULL, 'NaN')",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: Shop, owner: Owner, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address) as opened:
        yield opened


@pytest.fixture
def both(kit: Kit, owner: Owner) -> Kit:
    kit.read("a", "t", "v", "n")
    kit.read("b", "bag", "v", "d")
    kit.tick()
    kit.assert_exact(owner, "t", "bag")
    return kit
