"""A join over two attached databases, one of which is unreachable for a while: the daemon goes on with all else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.captured_lake import CapturedLake, open_captured, plain
from kits.daemon import running, until
from kits.shops import Shop, new_shop
from millstream import Code, Status
from millstream.results import RefreshStatus
from millstream.testing.postgres_server import FAST, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

NAMES = ("sold", "stocked", "joined")


@pytest.fixture
def other() -> Iterator[Shop]:
    with Server(FAST) as server:
        yield new_shop(server)


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, other: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop, scheduler_interval_ms=100, source_watch_seconds=1) as opened:
        opened.run("CREATE TABLE orders (id int PRIMARY KEY, item int)", "INSERT INTO orders VALUES (1, 1), (2, 2)")
        with other.owner() as owner:
            owner.execute("CREATE TABLE items (item int PRIMARY KEY, price int)")
            owner.execute("INSERT INTO items VALUES (1, 10), (2, 20)")
        opened.ms.attach("depot", other.server.url(other.name, "millstream"))
        tables = {"sold": "shop.public.orders", "stocked": "depot.public.items"}
        for name, table in tables.items():
            opened.ms.create_stream_table(name, f"SELECT * FROM {table}", schedule="1s")
        query = "SELECT o.id, i.price FROM shop.public.orders o JOIN depot.public.items i ON o.item = i.item"
        opened.ms.create_stream_table("joined", query, schedule="1s")
        yield opened


def rows(lake: CapturedLake, name: str) -> Counter[tuple[object, ...]]:
    return Counter(plain(row) for row in lake.ms.table(name).collect())


def test_one_of_them_is_unreachable(lake: CapturedLake, other: Shop) -> None:
    def failures(name: str) -> list[str]:
        found = lake.ms.refresh_history(name, limit=50)
        return [str(r.error_message) for r in found if r.status is RefreshStatus.FAILED]

    with running(lake.ms):
        lake.run("INSERT INTO orders VALUES (3, 1)")
        until(lambda: rows(lake, "joined")[plain((3, 10))])
        other.server.stop()
        until(lambda: failures("joined") and failures("stocked"))
        for number in (4, 5):
            lake.run(f"INSERT INTO orders VALUES ({number}, 2)")
            until(lambda: rows(lake, "sold")[plain((number, 2))])  # noqa: B023 - called in this round only
        assert rows(lake, "joined") == {plain((1, 10)): 1, plain((2, 20)): 1, plain((3, 10)): 1}
        assert not failures("sold")
        assert all(Code.DATABASE_UNREACHABLE in said or "cannot be reached" in said for said in failures("joined"))
        assert {s.status for s in lake.ms.status()} == {Status.ACTIVE}
        other.server.start()
        with other.owner() as owner:
            owner.execute("UPDATE items SET price = 21 WHERE item = 2")
        wanted = {plain(row): 1 for row in ((1, 10), (2, 21), (3, 10), (4, 21), (5, 21))}
        until(lambda: rows(lake, "joined") == wanted)
        until(lambda: rows(lake, "stocked") == {plain((1, 10)): 1, plain((2, 21)): 1})
    for name in NAMES:
        assert lake.ms.verify(name).ok
