"""Tables that differ only by the case of their names, captured at once: each is read as itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.captured_lake import CapturedLake, open_captured
from kits.shops import MILLSTREAM, Shop
from millstream.errors import Code, MillstreamError

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

TABLES = ("orders", "Orders", "ünï", "Ünï")


@pytest.fixture
def t(spark: object, tmp_path: Path, shop: Shop) -> Iterator[CapturedLake]:
    """Four tables of one schema, with other contents each."""
    with open_captured(tmp_path / "lake", shop) as lake:
        for number, table in enumerate(TABLES):
            lake.run(
                f'CREATE TABLE "{table}" (id int PRIMARY KEY, note text)',
                f"INSERT INTO \"{table}\" VALUES ({number}, 'of {table}'), (10, 'both')",
            )
        lake.run("CREATE SCHEMA reports", f"GRANT USAGE, CREATE ON SCHEMA reports TO {MILLSTREAM}")
        yield lake


def test_each_is_captured_refreshed_read_and_served_as_itself(t: CapturedLake) -> None:
    for number, table in enumerate(TABLES):
        t.stream(f"s{number}", f'SELECT id, note FROM shop.public."{table}" WHERE id < 100')
    t.stream("folded", "SELECT id, note FROM shop.public.ORDERS")
    t.stream(
        "mixed", 'SELECT a.note AS x, "A".note AS y FROM shop.public.orders a JOIN shop.public."Orders" "A" USING (id)'
    )
    t.stream(
        "inner",
        'SELECT id FROM shop.public."Orders" "A" WHERE EXISTS (SELECT 1 FROM shop.public.orders a WHERE a.id = "A".id)',
    )
    assert sorted(s.table for s in t.ms.sources()) == sorted(
        ["shop.public.orders", "shop.public.`Orders`", "shop.public.ünï", "shop.public.Ünï"]
    )
    for number, table in enumerate(TABLES):
        t.run(f"INSERT INTO \"{table}\" VALUES ({20 + number}, 'new in {table}')")
        t.refresh(f"s{number}")
        for name in (f'shop.public."{table}"', f"shop.public.`{table}`"):
            assert f"new in {table}" in {r[1] for r in t.ms.table(name).collect()}
            assert f"of {table}" in {r[1] for r in t.ms.sql(f"SELECT * FROM shop.public.`{table}`").collect()}
    for name in ("folded", "mixed", "inner"):
        t.refresh(name)
    for target, source in (("Totals", "s1"), ("totals", "s0")):
        t.ms.serve_stream_table(source, f'shop.reports."{target}"')
    for target, table in (("Totals", "Orders"), ("totals", "orders")):
        with t.shop.connect() as connection:
            rows = connection.execute(f'SELECT note FROM reports."{target}"').fetchall()
        assert (f"of {table}",) in rows
        assert f"of {table}" in {r[1] for r in t.ms.table(f'shop.reports."{target}"').collect()}
    t.ms.create_stream_table("again", 'SELECT note FROM shop.reports."Totals"')
    assert "of Orders" in {r[0] for r in t.ms.table("again").collect()}


def test_a_quoted_name_is_no_other_table(t: CapturedLake) -> None:
    t.run('DROP TABLE "Orders"', 'DROP TABLE "ünï"')
    for query in (
        'SELECT id FROM shop.public."Orders"',
        'SELECT id FROM shop."Orders"',
        'SELECT id FROM shop.public."ünï"',
        "SELECT id FROM shop.public.ünï",
    ):
        with pytest.raises(MillstreamError) as caught:
            t.ms.validate(query, dialect="postgres")
        assert caught.value.code is Code.UNKNOWN_TABLE
    with pytest.raises(MillstreamError) as caught:
        t.ms.table('shop.public."ünï"')
    assert caught.value.code is Code.UNKNOWN_TABLE
    t.stream("kept", "SELECT id, note FROM shop.public.Ünï")
    assert ("of Ünï",) in {(r[1],) for r in t.ms.table("kept").collect()}
    # Spark's own dialect takes ASCII letters in any case, where that is one table
    t.ms.create_stream_table("loose", "SELECT id, note FROM shop.public.oRDERS", dialect="spark")
    assert "of orders" in {r[1] for r in t.ms.table("loose").collect()}


def test_columns_that_spark_cannot_tell_apart_are_refused(t: CapturedLake) -> None:
    t.run('CREATE TABLE twins (id int PRIMARY KEY, a int, "A" int)')
    for query in (
        "SELECT id, a FROM shop.public.twins",
        'SELECT "A" FROM shop.public.twins',
        "TABLE shop.public.twins",
    ):
        with pytest.raises(MillstreamError) as caught:
            t.ms.create_stream_table("bad", query)
        assert caught.value.code is Code.UNSUPPORTED_SQL
    for query in ("SELECT id, a FROM shop.public.twins", "SELECT * FROM shop.public.twins"):
        with pytest.raises(MillstreamError):
            t.ms.create_stream_table("bad", query, dialect="spark")
    t.stream("rest", "SELECT id FROM shop.public.twins")


def test_totals_of_a_table_without_rows(t: CapturedLake) -> None:
    t.run("CREATE TABLE nothing (a int, b int)")
    query = "SELECT a, count(*) AS n, sum(b) AS s, grouping(a) AS g FROM shop.public.nothing GROUP BY ROLLUP (a)"
    t.stream("sums", query, mode="DIFFERENTIAL STRICT")
    t.ms.create_stream_table("recomputed", query, refresh_mode="FULL")
    t.queries["recomputed"] = query
    t.assert_exact("recomputed")
    for statement in ("INSERT INTO nothing VALUES (1, 2), (NULL, 3)", "DELETE FROM nothing"):
        t.run(statement)
        for name in ("sums", "recomputed"):
            t.refresh(name)
