"""Stream tables over views of an attached database: nobody sees through one what PostgreSQL would not show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from captured_lake import CapturedLake, open_captured
from shops import STRANGER, Shop

from millstream import Code

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))  # for the module below, which is no test

from lake_kit import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    """The attaching role may read all tables; a stranger may read `public.open`, and makes views of his own."""
    as_superuser(shop, f"CREATE SCHEMA stranger AUTHORIZATION {STRANGER}")
    as_stranger(
        shop,
        "GRANT USAGE ON SCHEMA stranger TO millstream",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA stranger GRANT SELECT ON TABLES TO millstream",
    )
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            "CREATE TABLE secrets (id int PRIMARY KEY, v text)",
            "INSERT INTO secrets VALUES (1, 'hush')",
            "CREATE TABLE open (id int PRIMARY KEY, v text)",
            "INSERT INTO open VALUES (1, 'open')",
            f"GRANT SELECT ON open TO {STRANGER}",
            "CREATE SCHEMA reports",
            "GRANT USAGE, CREATE ON SCHEMA reports TO millstream",
            f"GRANT USAGE ON SCHEMA public, reports TO {STRANGER}",
        )
        as_stranger(shop, "CREATE VIEW stranger.v AS SELECT id, v FROM public.open")
        yield opened


def as_stranger(shop: Shop, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as a role that may read what it was granted; gives the rows of the last one."""
    return _run(shop.server.url(shop.name, STRANGER), *statements)


def as_superuser(shop: Shop, *statements: str) -> list[tuple[object, ...]]:
    return _run(shop.server.url(shop.name), *statements)


def _run(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def contents(lake: CapturedLake, name: str = "st") -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in lake.ms.table(name).collect())


def captured(lake: CapturedLake) -> set[str]:
    return {capture.table for capture in lake.ms._catalog.captures("shop")}


def test_a_view_that_a_stranger_replaces_shows_nothing_that_its_owner_may_not_read(
    lake: CapturedLake, shop: Shop
) -> None:
    lake.ms.create_stream_table(
        "st", "SELECT id, v FROM shop.stranger.v", serve_to="shop.reports.seen", grants=[STRANGER]
    )
    assert contents(lake) == [(1, "open")]
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, v FROM public.secrets")
    for _ in range(2):
        with refused(Code.PRIVILEGE_MISSING, "public.secrets", STRANGER):
            lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "open")]
    assert as_stranger(shop, "SELECT id, v FROM reports.seen") == [(1, "open")]
    assert captured(lake) == {"open"}
    assert len(lake.mirrors) == 1
