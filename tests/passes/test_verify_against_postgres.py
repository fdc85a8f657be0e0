"""`verify(..., against="postgres")`: PostgreSQL's own answer, under the snapshot of the refresh it compares with."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import millstream
from kits.asked_lake import CHANGES, CORPUS, CUSTOMERS, ORDERS, ROWS, SCHEMA
from kits.captured_lake import CapturedLake, open_captured
from kits.lake import refused
from kits.shops import MILLSTREAM, OWNER, Shop, new_shop
from kits.wal_shops import REPLICATOR, new_owned_wal_shop
from kits.wal_tables import always_surveyed
from millstream import Code
from millstream.naming import TableName
from millstream.notices import NoticeWarning
from millstream.passes.verify_against_postgres import AgainstPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.testing.postgres_server import Server

__all__ = ["always_surveyed"]
pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::millstream.notices.MillstreamWarning"),
]
TOTALS = f"SELECT customer, count(*) AS n, sum(amount) AS total FROM {ORDERS} GROUP BY customer"


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(*SCHEMA, *ROWS)
        yield opened


def agrees(lake: CapturedLake, name: str) -> bool:
    return lake.ms.verify(name, against="postgres").ok


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_corpus_of_queries(lake: CapturedLake) -> None:
    wrong = {}
    for name, query in CORPUS.items():
        lake.ms.create_stream_table(name, query)
    for statements in (CHANGES, ("TRUNCATE orders, customers",)):
        lake.run(*statements)
        for name in CORPUS:
            result = lake.ms.verify(name, against="postgres")
            if not result.ok:
                wrong[name, statements[0]] = result
    assert wrong == {}


def test_what_the_engine_does_not_see(lake: CapturedLake) -> None:
    """Rows that no trigger saw are in no mirror: our two computations agree without them, PostgreSQL has them."""
    lake.ms.create_stream_table("totals", TOTALS)
    with lake.shop.server.superuser(lake.shop.name) as superuser:
        superuser.execute("SET session_replication_role = replica")
        superuser.execute("INSERT INTO orders (id, customer, amount) VALUES (1000, 77, 5), (1001, 1, 1)")
    lake.ms.refresh_stream_table("totals")
    assert lake.ms.verify("totals").ok
    result = lake.ms.verify("totals", against="postgres")
    assert (result.ok, result.missing, result.extra) == (False, 2, 1)


def test_contents_that_were_tampered_with(lake: CapturedLake, spark: SparkSession) -> None:
    lake.ms.create_stream_table("totals", TOTALS)
    table = lake.ms._catalog.get(TableName.parse("totals"))
    key, _, total = lake.ms._runtime.recorded.compiled(table).layouts[-1].outputs
    stage = table.public_stage
    spark.sql(f"UPDATE delta.`{stage.path}` SET `{total}` = `{total}` + 0.01 WHERE `{key}` = 1")
    with sqlite3.connect(lake.root / "millstream.db") as catalog:
        catalog.execute("UPDATE ms_stages SET version = version + 1")
    lake.run("INSERT INTO orders (id, customer, amount) VALUES (1000, 2, 5)")
    result = lake.ms.verify("totals", against="postgres")
    assert (result.ok, result.missing, result.extra) == (False, 1, 1)
    assert lake.ms.refresh_history("totals")[0].action == "DIFFERENTIAL", "it went on from what was there"


@contextmanager
def writing(url: str) -> Iterator[Callable[[], int]]:
    """Transactions over two tables without a pause; says how many there were."""
    is_over, done = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(url) as connection:
            while not is_over.is_set():
                with connection.transaction():
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1 + (random() * 39)::int")
                    connection.execute("UPDATE customers SET name = name || 'x' WHERE id = 1 AND length(name) < 50")
                    connection.execute("DELETE FROM orders WHERE id > 1000")
                    connection.execute(
                        "INSERT INTO orders (id, customer, amount) VALUES (1000 + (random() * 1e9)::int, 2, 3)"
                    )
                done[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        is_over.set()
        thread.join()


def verify_under_load(lake: CapturedLake, url: str) -> None:
    lake.ms.create_stream_table("totals", TOTALS)
    lake.ms.create_stream_table(
        "by_name", f"SELECT c.name, t.n, t.total FROM totals t LEFT JOIN {CUSTOMERS} c ON c.id = t.customer"
    )
    with writing(url) as written:
        for _ in range(2):
            before = written()
            assert agrees(lake, "by_name")
            assert agrees(lake, "totals")
            assert written() > before, "it was written meanwhile"


@pytest.mark.long
def test_under_load_by_triggers(lake: CapturedLake) -> None:
    verify_under_load(lake, lake.shop.server.url(lake.shop.name, OWNER))
    assert {h.cdc_mode for h in lake.ms.check_cdc_health()} == {"TRIGGER"}


@pytest.mark.long
def test_under_load_by_the_wal(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    shop = new_owned_wal_shop(server)
    url = shop.server.url(shop.name, REPLICATOR)
    with millstream.connect(tmp_path / "lake") as ms, psycopg.connect(url, autocommit=True) as owner:
        lake = CapturedLake(ms, tmp_path / "lake", shop, owner)
        lake.run(*SCHEMA, *ROWS)
        ms.attach("shop", url, cdc="wal")
        ms.create_stream_table("sums", f"SELECT sum(amount) AS s FROM {ORDERS}")
        ms.create_stream_table("names", f"SELECT name FROM {CUSTOMERS}")
        for _ in range(40):
            if {h.cdc_mode for h in ms.check_cdc_health()} == {"WAL"}:
                break
            lake.run("UPDATE orders SET amount = amount + 1")
            ms.refresh_stream_table("sums")
        verify_under_load(lake, url)
        assert {h.cdc_mode for h in ms.check_cdc_health()} == {"WAL"}
        ms.detach("shop", cascade=True)


def test_a_chain_of_stream_tables_and_views(lake: CapturedLake) -> None:
    lake.run(
        "CREATE VIEW big AS SELECT id, customer, amount * 2 AS twice FROM orders WHERE amount > 10",
        "CREATE VIEW bigger(k, c, t) AS SELECT * FROM big WHERE twice > 50",
        "GRANT SELECT ON big, bigger TO millstream",
    )
    lake.ms.create_stream_table("totals", TOTALS)
    lake.ms.create_stream_table(
        "aged", f"SELECT id, now() AS at FROM {ORDERS} WHERE placed < now() - interval '1 hour'"
    )
    lake.ms.create_stream_table(
        "top",
        "SELECT b.k, b.t, one.total, two.n, (SELECT count(*) FROM aged) AS old FROM shop.public.bigger b "
        "JOIN totals one ON one.customer = b.c LEFT JOIN totals AS two(c, n, s) ON two.c = b.c + 1",
    )
    lake.run(*CHANGES)
    assert agrees(lake, "top")
    assert agrees(lake, "aged")
    lake.run("CREATE OR REPLACE VIEW big AS SELECT id, customer, amount * 3 AS twice FROM orders WHERE amount > 5")
    with pytest.warns(NoticeWarning, match="recomputed"):
        assert agrees(lake, "top")


def test_what_is_altered_meanwhile(lake: CapturedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRUNCATE is seen under an older snapshot, too: then all is done again under a newer one."""
    lake.ms.create_stream_table("totals", TOTALS)
    original, calls = AgainstPostgres._compare, []

    def compare(self: AgainstPostgres, *args: Any) -> Any:
        if not calls:
            lake.run("TRUNCATE orders", "INSERT INTO orders (id, customer, amount) VALUES (1, 1, 1)")
        calls.append(self)
        return original(self, *args)

    monkeypatch.setattr(AgainstPostgres, "_compare", compare)
    assert agrees(lake, "totals")
    assert len(calls) == 2


def test_a_result_that_sql_leaves_open(lake: CapturedLake) -> None:
    lake.run(*(f"INSERT INTO nothing VALUES ({i}, '{'abc'[i % 3]}', 1)" for i in (5, 4, 3, 2, 1)))
    lake.ms.create_stream_table("first", "SELECT a, b FROM shop.public.nothing ORDER BY n LIMIT 2")
    with refused(Code.NOT_COMPARABLE, "LIMIT"):
        lake.ms.verify("first", against="postgres")
    assert lake.ms.verify("first").ok
    lake.ms.create_stream_table("settled", "SELECT a, b FROM shop.public.nothing ORDER BY n, a LIMIT 2")
    assert agrees(lake, "settled")


def test_a_large_answer(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    with open_captured(tmp_path / "lake", shop, direct_max_rows=10) as lake:
        lake.run(*SCHEMA, *ROWS)
        lake.ms.create_stream_table("all_orders", f"SELECT * FROM {ORDERS}")
        assert agrees(lake, "all_orders")
        assert list((lake.root / "verifying").iterdir()) == []


def test_what_cannot_be_compared(lake: CapturedLake, server: Server) -> None:
    ms = lake.ms
    ms.create_stream_table("totals", TOTALS)
    with refused(Code.ORACLE_INVALID, "postgres"):
        ms.verify("totals", against="duckdb")
    ms.sql("CREATE TABLE rates (customer INT, rate INT) USING delta")
    ms.create_stream_table(
        "mixed", f"SELECT r.rate FROM {ORDERS} o JOIN rates r ON r.customer = o.customer", dialect="postgres"
    )
    with refused(Code.NOT_COMPARABLE, "rates"):
        ms.verify("mixed", against="postgres")
    ms.create_stream_table("sparks", f"SELECT customer FROM {ORDERS}", dialect="spark")
    with refused(Code.NOT_COMPARABLE, "Spark"):
        ms.verify("sparks", against="postgres")
    ms.create_stream_table("over_sparks", "SELECT count(*) AS n FROM sparks", dialect="postgres")
    with refused(Code.NOT_COMPARABLE, "sparks"):
        ms.verify("over_sparks", against="postgres")
    ms.create_stream_table("volatile", f"SELECT id, random() AS r FROM {ORDERS}", refresh_mode="FULL")
    with refused(Code.NOT_COMPARABLE, "random"):
        ms.verify("volatile", against="postgres")
    ms.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        ms.create_stream_table("elsewhere", "SELECT sum(n) AS n FROM totals")
    finally:
        ms.spark.conf.set("spark.sql.session.timeZone", "UTC")
    with refused(Code.NOT_COMPARABLE, "time zone"):
        ms.verify("elsewhere", against="postgres")
    other = new_shop(server)
    with other.owner() as owner:
        owner.execute("CREATE TABLE stock (id int)")
    ms.attach("other", other.server.url(other.name, MILLSTREAM))
    ms.create_stream_table("both", f"SELECT o.id FROM {ORDERS} o JOIN other.public.stock s ON s.id = o.id")
    with refused(Code.NOT_COMPARABLE, "different databases"):
        ms.verify("both", against="postgres")
