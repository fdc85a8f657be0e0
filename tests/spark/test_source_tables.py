"""Source tables of every make: partitioned, with deletion vectors, mapped columns, odd names, two-part names."""

from __future__ import annotations

import pytest

from kits.lake import FEED, Lake
from millstream import Action

pytestmark = pytest.mark.spark


def with_property(name: str, value: str) -> str:
    return f"{FEED[:-1]}, '{name}' = '{value}')"


def test_deletion_vectors_and_partitions(lake: Lake) -> None:
    lake.sql(
        f"CREATE TABLE dv (id INT, p STRING, v INT) {with_property('delta.enableDeletionVectors', 'true')}",
        f"""CREATE TABLE part (id INT, p STRING, v INT) PARTITIONED BY (p)
            {with_property("delta.enableDeletionVectors", "false")}""",
    )
    for name in ("dv", "part"):
        lake.insert(name, *(f"{i}, '{'xyz'[i % 3]}', {i}" for i in range(30)), "30, NULL, 30")
    lake.stream("sums", "SELECT p, SUM(v) AS s, COUNT(*) AS n FROM dv GROUP BY p")
    lake.stream("both", "SELECT dv.id, part.p, part.v FROM dv JOIN part ON dv.id = part.id WHERE part.v > 3")
    lake.stream("outer_", "SELECT part.id, dv.v FROM part LEFT JOIN dv ON part.p = dv.p AND part.id = dv.id + 1")
    for batch in (
        ("DELETE FROM dv WHERE id % 7 = 0", "DELETE FROM part WHERE id % 5 = 0"),
        ("UPDATE dv SET v = -v WHERE id > 20", "UPDATE part SET p = 'moved' WHERE p IS NULL OR id < 4"),
        ("DELETE FROM part WHERE p = 'x'", "INSERT INTO part VALUES (100, NULL, 7)", "OPTIMIZE dv"),
        (
            "MERGE INTO dv USING (SELECT 1 AS id UNION ALL SELECT 200) s ON dv.id = s.id "
            "WHEN MATCHED THEN UPDATE SET v = 1000 WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, 'new', 1)",
        ),
    ):
        lake.sql(*batch)
        lake.refresh_all(expected=None)
    assert lake.last("both").action is Action.DIFFERENTIAL


def test_mapped_columns_and_odd_names(lake: Lake) -> None:
    lake.sql(
        f"""CREATE TABLE odd (`order id` INT, `a.b` STRING, `Größe` INT, `select` INT, `semi;colon` INT)
            {with_property("delta.columnMapping.mode", "name")}"""
    )
    lake.insert("odd", "1, 'x', 10, 100, 5", "2, 'y', 20, 200, 6", "3, 'x', 30, NULL, NULL")
    lake.stream("copy", "SELECT * FROM odd")
    lake.stream(
        "grouped",
        """SELECT `a.b` AS `the.key`, SUM(`Größe`) AS `sum of Größe`, MAX(odd.`select`) AS `MAX`,
             COUNT(`semi;colon`) AS `n``n` FROM odd GROUP BY `a.b`""",
    )
    lake.stream("above", "SELECT `the.key`, `sum of Größe` + 1 AS `plus one` FROM grouped WHERE `MAX` IS NOT NULL")
    assert lake.ms.table("grouped").columns == ["the.key", "sum of Größe", "MAX", "n`n"]
    for batch in (
        ("INSERT INTO odd VALUES (4, 'z', 1, 1, 1)", "UPDATE odd SET `Größe` = 11 WHERE `order id` = 1"),
        ("DELETE FROM odd WHERE `a.b` = 'y'",),
    ):
        lake.sql(*batch)
        lake.refresh_all(expected=None)
        assert lake.last("above").action is Action.DIFFERENTIAL


def test_quotes_in_strings(lake: Lake) -> None:
    lake.table("t", "id INT, name STRING", "1, 'O''Brien'", "2, 'plain'")
    lake.stream("irish", r"""SELECT id, name || '\'s' AS owner, "a'b" AS c, 'x"y' AS d FROM t WHERE name LIKE 'O''%'""")
    lake.insert("t", "3, 'O''Hara'")
    lake.refresh("irish", Action.APPEND_ONLY)
    assert lake.rows("irish") == {(1, "O'Brien's", "a'b", 'x"y'): 1, (3, "O'Hara's", "a'b", 'x"y'): 1}


def test_names_differ_by_more_than_case(lake: Lake) -> None:
    lake.table("Orders", "ID INT, Amount INT", "1, 10", "2, 20")
    lake.stream("Totals", "SELECT SUM(aMOUNT) AS Total, max(orders.id) AS LAST FROM ORDERS")
    lake.insert("orders", "3, 30")
    assert lake.ms.refresh_stream_table("TOTALS").action is Action.DIFFERENTIAL
    lake.assert_exact("Totals")
    assert lake.ms.table("totals").columns == ["Total", "LAST"]


def test_two_part_names(lake: Lake) -> None:
    lake.sql("CREATE SCHEMA odd_sales")
    lake.table("odd_sales.orders", "id INT, v INT", "1, 1", "2, 2")
    lake.table("orders", "id INT, v INT", "1, 100")
    assert (lake.root / "tables" / "odd_sales.db" / "orders" / "_delta_log").is_dir()
    lake.stream("odd_sales.totals", "SELECT SUM(v) AS s FROM odd_sales.orders")
    lake.stream(
        "mixed", "SELECT odd_sales.orders.id, t.s FROM odd_sales.orders JOIN odd_sales.totals t ON orders.v < t.s"
    )
    lake.insert("odd_sales.orders", "3, 3")
    lake.insert("orders", "3, 3")
    lake.refresh_all(expected=None)
    assert lake.rows("odd_sales.totals") == {(6,): 1}
    assert {s.name for s in lake.ms.status()} >= {"odd_sales.totals", "mixed"}


def test_a_source_without_used_columns(lake: Lake) -> None:
    lake.table("t", "a INT, b INT", "1, 1", "2, 2")
    lake.stream("n", "SELECT COUNT(*) AS n FROM t")
    lake.stream("ones", "SELECT 1 AS one FROM t")
    lake.stream("crossed", "SELECT x.a FROM t x CROSS JOIN t y")
    for statement in ("INSERT INTO t VALUES (3, 3), (3, 3)", "DELETE FROM t WHERE a = 3", "UPDATE t SET b = 9"):
        lake.sql(statement)
        lake.refresh_all(expected=None)


def test_tables_that_spark_was_given_directly(lake: Lake) -> None:
    spark = lake.ms.spark
    spark.sql("SELECT 1 AS a, 'x' AS s").write.format("delta").saveAsTable("saved")
    with pytest.warns(match="change data feed of saved was switched on"):
        lake.stream("from_saved", "SELECT a, s FROM saved")
    spark.sql("INSERT INTO saved VALUES (2, 'y')")
    lake.refresh("from_saved", Action.APPEND_ONLY)
    external = lake.root.parent / "elsewhere"
    spark.sql("SELECT 5 AS a").write.format("delta").option("delta.enableChangeDataFeed", "true").save(str(external))
    lake.sql(f"CREATE TABLE external USING delta LOCATION '{external}'")
    lake.stream("from_external", "SELECT a + 1 AS b FROM external")
    lake.sql("UPDATE external SET a = 6")
    lake.refresh("from_external", Action.DIFFERENTIAL)
    lake.sql("DROP TABLE external")
    del lake.queries["from_external"]  # its query cannot be run any more
    assert (external / "_delta_log").is_dir()
