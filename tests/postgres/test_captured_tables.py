"""Stream tables over captured tables: after every refresh the contents are the database's own answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from captured_lake import CapturedLake, open_captured
from shops import Shop

from millstream import Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            "CREATE TABLE customers (id int PRIMARY KEY, name text, note text)",
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, amount numeric(10,2), note text)",
            "CREATE TABLE events (kind text, n int)",
            "INSERT INTO customers VALUES (1, 'ann', 'x'), (2, 'bob', 'y')",
            "INSERT INTO orders VALUES (1, 1, 10.50, 'a'), (2, 2, 20, 'b'), (3, 1, 5, 'c')",
            "INSERT INTO events VALUES ('a', 1), ('a', 1), ('b', 2)",
        )
        yield opened


TOTALS = (
    "SELECT c.name, count(*) AS n, sum(o.amount) AS total FROM shop.public.orders o "
    "JOIN shop.public.customers c ON c.id = o.customer GROUP BY c.name"
)


def test_every_kind_of_change(lake: CapturedLake) -> None:
    lake.stream("totals", TOTALS)
    lake.stream("kinds", "SELECT kind, n FROM shop.public.events WHERE n > 0")
    lake.refresh("totals", Action.NO_DATA)
    for statement in (
        "INSERT INTO orders VALUES (4, 2, 1.25, 'd'), (5, 1, 2, NULL)",
        "UPDATE orders SET amount = amount + 1 WHERE customer = 1",
        "UPDATE orders SET id = id + 100 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
        "WITH moved AS (UPDATE customers SET name = 'bea' WHERE id = 2) INSERT INTO orders VALUES (9, 2, 3, '')",
        "INSERT INTO orders VALUES (9, 1, 7, '') ON CONFLICT (id) DO UPDATE SET amount = 8",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 1, 1, 'again')",
    ):
        lake.run(statement)
        lake.refresh("totals", Action.DIFFERENTIAL)
    lake.run("UPDATE orders SET note = 'not captured'")
    lake.refresh("totals", Action.NO_DATA)
    lake.run(
        "INSERT INTO events VALUES ('a', 1), ('c', NULL)",
        "DELETE FROM events WHERE ctid = (SELECT min(ctid) FROM events WHERE kind = 'a')",
        "UPDATE events SET n = 3 WHERE kind = 'b'",
    )
    lake.refresh("kinds", Action.DIFFERENTIAL)
    lake.ms.drop_stream_table("kinds")
    assert len(lake.mirrors) == 2
    lake.ms.drop_stream_table("totals")
    assert (lake.mirrors, lake.made) == ([], [])
