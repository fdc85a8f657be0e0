"""Stream tables over captured tables: after every refresh the contents are the database's own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.captured_lake import CapturedLake, open_captured, written
from kits.lake import refused
from kits.shops import MILLSTREAM, Shop
from millstream import Action, Code, Status
from millstream.capture import source_snapshot
from millstream.notices import FullRefreshWarning
from millstream.sources.postgres.load import initial_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, int]:
    return getattr(request, "param", {})


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path, settings: dict[str, int]) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop, **settings) as opened:
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


def test_two_tables_of_one_transaction_are_seen_together(lake: CapturedLake, shop: Shop) -> None:
    """A writer moves money between two tables all the time: every refresh sees the same sum."""
    lake.run("CREATE TABLE left_side (v int)", "CREATE TABLE right_side (v int)", "INSERT INTO left_side VALUES (100)")
    lake.run("INSERT INTO right_side VALUES (0)")
    query = "SELECT l.v + r.v AS total FROM shop.public.left_side l CROSS JOIN shop.public.right_side r"
    lake.stream("total", query)
    stop = threading.Event()

    def moving() -> None:
        with shop.owner() as writer:
            while not stop.is_set():
                writer.execute("WITH x AS (UPDATE left_side SET v = v - 1) UPDATE right_side SET v = v + 1")

    thread = threading.Thread(target=moving)
    thread.start()
    try:
        for _ in range(4):
            lake.ms.refresh_stream_table("total")
            assert [tuple(row) for row in lake.ms.table("total").collect()] == [(100,)]
    finally:
        stop.set()
        thread.join()
    lake.refresh("total")


def test_more_columns_for_a_second_reader(lake: CapturedLake) -> None:
    lake.stream("amounts", "SELECT customer, sum(amount) AS s FROM shop.public.orders GROUP BY customer")
    lake.stream("notes", "SELECT id, note FROM shop.public.orders")
    assert len(lake.mirrors) == 1
    lake.refresh("amounts", Action.NO_DATA)
    lake.run("UPDATE orders SET note = 'other' WHERE id = 1")
    lake.refresh("notes", Action.DIFFERENTIAL)
    assert written(lake.refresh("amounts")) == 0
    lake.ms.sql("ALTER STREAM TABLE notes AS SELECT id, name AS note FROM shop.public.customers")
    lake.queries["notes"] = "SELECT id, name AS note FROM shop.public.customers"
    lake.assert_exact("notes")
    assert len(lake.mirrors) == 2
    lake.ms.drop_stream_table("amounts")
    assert len(lake.mirrors) == 1


def test_sources_that_change(lake: CapturedLake) -> None:
    """Other types reinitialise, rewrites are a change like any other, what is gone is an error until it is back."""
    query = "SELECT id, amount FROM shop.public.orders"
    lake.stream("amounts", query)
    lake.stream("named", "SELECT name FROM shop.public.customers")
    lake.run("ALTER TABLE orders ALTER amount TYPE numeric(10,2) USING amount * 2")
    lake.refresh("amounts", Action.DIFFERENTIAL)
    lake.run("ALTER TABLE orders ALTER amount TYPE numeric(14,4)", "UPDATE orders SET amount = 1.2345 WHERE id = 1")
    result = lake.refresh("amounts", Action.REINITIALIZE)
    assert "amount" in result.reason
    lake.run("INSERT INTO orders VALUES (50, 1, 0.0001, '')")
    lake.refresh("amounts", Action.APPEND_ONLY)
    lake.run("ALTER TABLE orders RENAME amount TO price")
    with refused(Code.SOURCE_CHANGED, "amount"):
        lake.ms.refresh_stream_table("amounts")
    assert lake.ms.status()[0].status is Status.ERROR
    lake.run("UPDATE customers SET name = 'eve' WHERE id = 1")
    lake.refresh("named", Action.DIFFERENTIAL)
    lake.run("ALTER TABLE orders RENAME price TO amount")
    lake.refresh("amounts", Action.REINITIALIZE)
    lake.run("DROP TABLE orders")
    with refused(Code.SOURCE_MISSING):
        lake.ms.refresh_stream_table("amounts")
    lake.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(14,4))", "INSERT INTO orders VALUES (1, 2)")
    lake.refresh("amounts")
    assert len(lake.mirrors) == 2


def test_views_of_the_database(lake: CapturedLake) -> None:
    lake.run("CREATE VIEW big AS SELECT id, amount FROM orders WHERE amount > 8")
    lake.run(f"GRANT SELECT ON big TO {MILLSTREAM}")
    lake.stream("seen", "SELECT id, amount FROM shop.public.big")
    lake.run("UPDATE orders SET amount = 9 WHERE id = 3")
    lake.refresh("seen", Action.DIFFERENTIAL)
    lake.run("CREATE OR REPLACE VIEW big AS SELECT id, amount FROM orders WHERE amount < 15")
    result = lake.refresh("seen", Action.REINITIALIZE)
    assert "big" in result.reason
    lake.run("CREATE MATERIALIZED VIEW kept AS SELECT id, amount FROM orders")
    lake.run(f"GRANT SELECT ON kept TO {MILLSTREAM}")
    with pytest.warns(FullRefreshWarning):
        lake.stream("copied", "SELECT id, amount FROM shop.public.kept", "AUTO")
    lake.run("DELETE FROM orders WHERE id = 1", "REFRESH MATERIALIZED VIEW kept")
    lake.refresh("copied", Action.FULL)
    lake.refresh("seen", Action.DIFFERENTIAL)


@pytest.mark.parametrize("settings", [{"direct_max_rows": 100}], indirect=True)
def test_a_large_table_goes_through_spark(lake: CapturedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded, landed, compared and widened by frames, as if nothing fitted the driver."""
    by_workers: list[str] = []
    for way in ("spark_files", "spark_frame"):
        monkeypatch.setattr(source_snapshot, way, _noting(way, getattr(source_snapshot, way), by_workers))
    monkeypatch.setattr(initial_load, "DRIVER_ROWS", 0)
    lake.run("INSERT INTO orders SELECT i, i % 2 + 1, i, 'n' || i FROM generate_series(100, 1500) i")
    lake.stream("amounts", "SELECT customer, sum(amount) AS s, count(*) AS n FROM shop.public.orders GROUP BY customer")
    lake.run("UPDATE orders SET amount = amount + 1 WHERE id < 600", "DELETE FROM orders WHERE id > 1200")
    lake.refresh("amounts")
    lake.run("ALTER TABLE orders ALTER amount TYPE numeric(10,2) USING amount + 1", "DELETE FROM orders WHERE id < 200")
    lake.refresh("amounts")
    lake.stream("notes", "SELECT note FROM shop.public.orders WHERE id < 400")
    lake.run("UPDATE orders SET note = 'x' WHERE id < 390")
    lake.refresh("notes")
    assert written(lake.refresh("amounts")) == 0
    lake.run("TRUNCATE orders", "INSERT INTO orders SELECT i, 1, i, 'n' FROM generate_series(1, 300) i")
    lake.refresh("amounts")
    lake.refresh("notes")
    assert by_workers[0] == "spark_files"
    assert set(by_workers[1:]) == {"spark_frame"}


def _noting(name: str, call: Callable[..., Any], noted: list[str]) -> Callable[..., Any]:
    def noting(*arguments: Any, **options: Any) -> Any:
        noted.append(name)
        return call(*arguments, **options)

    return noting
