"""Names of attached tables wherever a name can appear: queries of both dialects, `ms.sql`, `ms.table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, lake
from kits.shops import MILLSTREAM, Shop
from millstream.catalog.models import LakeObject, ObjectKind
from millstream.catalog.object_details import ObjectDetails
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.naming import TableName
from millstream.results import RefreshMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.spark]


@pytest.fixture
def t(lake: Lake, shop: Shop) -> Lake:
    """A lake with a table of its own, and a database attached as `shop`."""
    with shop.owner() as owner:
        owner.execute('CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2), "Line" int)')
        owner.execute("INSERT INTO orders VALUES (1, 'ann', 2.50, 7), (2, 'bob', 1.25, 8)")
        owner.execute("CREATE TABLE costs (id int, price money, at timestamptz)")
        owner.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        owner.execute("CREATE TABLE things (id int, j jsonb, docs jsonb[], mood mood, u uuid, span interval(3))")
        owner.execute("CREATE VIEW seen AS SELECT id, j, mood FROM things")
        owner.execute("CREATE VIEW big AS SELECT o.id, o.amount * 2 AS twice FROM orders o WHERE amount > 2")
        owner.execute("CREATE VIEW bigger AS WITH w AS (SELECT * FROM big) SELECT twice::int AS n FROM w")
        owner.execute("CREATE MATERIALIZED VIEW kept AS SELECT id FROM orders")
        owner.execute("CREATE SCHEMA other CREATE TABLE twice (id int)")
        owner.execute(f"GRANT USAGE ON SCHEMA other TO {MILLSTREAM}")
        owner.execute(f"GRANT SELECT, TRIGGER ON other.twice TO {MILLSTREAM}")
        owner.execute("CREATE TABLE public.twice (id int)")
    lake.ms.attach("shop", shop.address.reference)
    lake.table("mine", "id BIGINT, note STRING", "1, 'x'")
    return lake


def compiled(t: Lake, query: str, dialect: str | None = None) -> Compiled:
    return t.ms._runtime.compiler.compile(query, RefreshMode.DIFFERENTIAL, dialect)


def error_of(t: Lake, query: str, dialect: str | None = None) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        compiled(t, query, dialect)
    return caught.value


def mirrored(t: Lake, spark: SparkSession) -> None:
    """Have a mirror of all columns of `orders`, which differs from the table so that it can be told from it."""
    path = t.root / "mirrors" / "c1"
    rows = "SELECT 3L AS id, 'cat' AS customer, CAST(9 AS DECIMAL(10,2)) AS amount, 1 AS Line"
    spark.sql(rows).write.format("delta").save(str(path))
    name = TableName("shop.public", "orders")
    t.ms._catalog.put_lake_object(
        LakeObject(
            kind=ObjectKind.TABLE,
            name=name,
            location=str(path),
            provider="delta",
            details=ObjectDetails(capture="c1"),
        )
    )


def test_queries_in_both_dialects(t: Lake) -> None:
    text = "SELECT customer, SUM(amount) AS total FROM {} GROUP BY customer"
    for name in ("shop.public.orders", "shop.orders", "SHOP.Public.ORDERS"):
        for dialect in ("spark", "postgres"):
            found = compiled(t, text.format(name), dialect)
            assert list(found.sources) == ["shop.public.orders"]
            assert found.used_columns == {"shop.public.orders": ("amount", "customer")}
            assert [c.type for c in found.columns][1].startswith("decimal")
    qualified = (
        "SELECT shop.public.orders.id, orders.amount FROM shop.public.orders WHERE orders.id IN (SELECT id FROM mine)"
    )
    assert set(compiled(t, qualified, "spark").sources) == {"shop.public.orders", "mine"}
    assert compiled(t, 'SELECT "Line" FROM shop.orders', "postgres").columns[0].name == "Line"
    assert error_of(t, "SELECT line FROM shop.orders", "postgres").code is Code.UNKNOWN_COLUMN


def test_the_default_dialect_is_that_of_the_leaves(t: Lake) -> None:
    t.ms.create_stream_table("mine_twice", "SELECT id * 2 AS id FROM mine", initialize=False)
    for query, dialect in (
        ("SELECT id FROM shop.orders", "postgres"),
        ("SELECT n FROM shop.bigger JOIN shop.public.orders ON n = id", "postgres"),
        ("WITH w AS (SELECT id FROM shop.orders) SELECT count(*) AS n FROM w", "postgres"),
        ("SELECT id FROM shop.orders JOIN mine USING (id)", "spark"),
        ("SELECT id FROM shop.orders JOIN mine_twice USING (id)", "spark"),
        ("SELECT id FROM mine", "spark"),
        ("SELECT 1 AS one", "spark"),
        ("SELECT `id` FROM shop.orders", "spark"),
    ):
        assert t.ms._runtime.compiler.default_dialect(query) == dialect, query
    lateral = "SELECT id FROM shop.orders LATERAL VIEW explode(array(1)) e AS x"
    assert "dialect 'spark'" in str(error_of(t, lateral))
    assert "dialect 'spark'" not in str(error_of(t, lateral, "postgres"))
    # integers divide as they do in PostgreSQL
    assert compiled(t, "SELECT id / 2 AS half FROM shop.orders").columns[0].type == "bigint"
    assert compiled(t, "SELECT id / 2 AS half FROM shop.orders", "spark").columns[0].type == "double"


def test_views_are_inlined(t: Lake) -> None:
    for dialect in ("spark", "postgres"):
        found = compiled(t, "SELECT n FROM shop.public.bigger", dialect)
        assert list(found.sources) == ["shop.public.orders"]
        assert set(found.views) == {"shop.public.bigger", "shop.public.big"}
        assert found.used_columns == {"shop.public.orders": ("amount",)}


def test_columns_keep_the_types_of_the_database(t: Lake) -> None:
    uuid = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    for query in (
        "SELECT j ->> 'a' AS a, jsonb_build_object('j', j) AS doc FROM shop.{} WHERE mood = 'ok'",
        f"SELECT id, span::text AS span FROM shop.things WHERE u = '{uuid}' AND docs[1] ->> 'a' = 'b'",
    ):
        for table in ("things", "seen"):
            assert compiled(t, query.format(table), "postgres").columns
    for condition, said in (
        ("j = '{}'", "a comparison of jsonb"),
        ("mood < 'ok'", "mood < "),
        ("j || '{}' IS NULL", "|| of json"),
    ):
        for table in ("things", "seen"):
            error = error_of(t, f"SELECT id FROM shop.{table} WHERE {condition}", "postgres")
            assert (error.code, said in error.message) == (Code.UNSUPPORTED_SQL, True), str(error)
    assert "interval column" in error_of(t, "SELECT span * 2 AS s FROM shop.things", "postgres").message


def test_what_cannot_be_read_is_refused_by_name(t: Lake) -> None:
    assert compiled(t, "SELECT id FROM shop.costs").used_columns == {"shop.public.costs": ("id",)}
    for query in (
        "SELECT * FROM shop.costs",
        "SELECT id, price FROM shop.costs",
        "SELECT count(price) AS n FROM shop.costs",
    ):
        for dialect in ("spark", "postgres"):
            error = error_of(t, query, dialect)
            assert (error.code, "price" in error.message) == (Code.UNSUPPORTED_TYPE, True), (query, dialect, str(error))
    full = t.ms._runtime.compiler.compile("SELECT id, rand() AS r FROM shop.costs", RefreshMode.FULL, "spark")
    assert full.used_columns == {"shop.public.costs": ("at", "id")}
    assert error_of(t, "SELECT id FROM shop.public.kept").code is Code.SOURCE_NO_CHANGE_FEED
    assert error_of(t, "SELECT id FROM shop.twice").code is Code.NAME_AMBIGUOUS
    assert error_of(t, "SELECT id FROM shop.public.none").code is Code.UNKNOWN_TABLE
    for dialect in ("spark", "postgres"):
        error = error_of(t, "SELECT id,\n  nope FROM shop.orders", dialect)
        assert error.code is Code.UNKNOWN_COLUMN
        assert error.position is not None
        assert (error.position.line, error.position.column) == (2, 3)


def test_nothing_is_written_there(t: Lake) -> None:
    for statement, code in (
        ("INSERT INTO shop.public.orders VALUES (1, 'a', 1, 1)", Code.ATTACHED_READ_ONLY),
        ("DELETE FROM shop.orders", Code.ATTACHED_READ_ONLY),
        ("DROP TABLE shop.public.orders", Code.ATTACHED_READ_ONLY),
        ("CREATE TABLE shop.new (id INT)", Code.ATTACHED_READ_ONLY),
        ("ALTER TABLE mine RENAME TO shop.mine", Code.ATTACHED_READ_ONLY),
        ("CREATE VIEW v AS SELECT * FROM shop.orders", Code.UNSUPPORTED_SQL),
        ("CREATE SCHEMA shop", Code.NAME_TAKEN),
        ("DROP SCHEMA shop", Code.ATTACHED_READ_ONLY),
        ("CREATE STREAM TABLE shop.totals AS SELECT id FROM mine", Code.NAME_TAKEN),
        ("CREATE STREAM TABLE shop.public.totals AS SELECT id FROM mine", Code.NAME_INVALID),
        ("CREATE STREAM TABLE s DIALECT 'klingon' AS SELECT id FROM mine", Code.UNSUPPORTED_SQL),
    ):
        with pytest.raises(MillstreamError) as caught:
            t.ms.sql(statement)
        assert caught.value.code is code, statement
        assert caught.value.hint


def test_a_mirror_of_all_columns_is_read(t: Lake, spark: SparkSession) -> None:
    mirrored(t, spark)
    assert [r.customer for r in t.ms.table("shop.orders").collect()] == ["cat"]
    assert t.ms.table('shop."public".`Orders`').columns == ["id", "customer", "amount", "Line"]
    rows = t.ms.sql("SELECT shop.public.orders.id, o.amount FROM shop.public.orders, shop.orders o").collect()
    assert [tuple(r) for r in rows] == [(3, 9)]
    assert t.ms.sql("SELECT shop.id FROM mine AS shop").collect()[0].id == 1
    t.sql("INSERT INTO mine SELECT id, customer FROM shop.orders", "CREATE TABLE made AS SELECT * FROM shop.orders")
    assert t.ms.sql("SELECT * FROM mine JOIN made USING (id)").count() == 1
    assert "Physical Plan" in str(t.ms.sql("EXPLAIN SELECT * FROM shop.orders").collect())
    assert t.ms.sql("DESCRIBE shop.public.orders").collect()[0].col_name == "id"
    with pytest.raises(MillstreamError) as caught:
        t.ms.sql("SELECT nope FROM shop.orders")
    assert (caught.value.code, caught.value.sql) == (Code.UNKNOWN_COLUMN, "SELECT nope FROM shop.orders")


def test_other_tables_are_read_from_the_database(t: Lake, shop: Shop) -> None:
    assert sorted(r.customer for r in t.ms.table("shop.orders").collect()) == ["ann", "bob"]
    assert [r.n for r in t.ms.table("shop.public.bigger").collect()] == [5]
    assert t.ms.sql("SELECT sum(amount) AS s FROM shop.orders JOIN mine USING (id)").collect()[0].s == 2.5
    with pytest.warns(UserWarning, match="without its column price"):
        assert t.ms.table("shop.costs").columns == ["id", "at"]
    with shop.owner() as owner:  # what the translation of views refuses can be read all the same
        owner.execute("CREATE VIEW odd AS SELECT id FROM orders TABLESAMPLE SYSTEM (100)")
    assert t.ms.table("shop.odd").count() == 2
    with pytest.raises(MillstreamError) as caught:
        t.ms.table("shop.nope")
    assert caught.value.code is Code.UNKNOWN_TABLE


def test_sql_attaches_and_detaches(lake: Lake, shop: Shop) -> None:
    lake.sql(f"ATTACH POSTGRES '{shop.address.reference}' AS shop CDC 'trigger'")
    assert [s.cdc for s in lake.ms.sources()] == ["trigger"]
    lake.sql(f"ATTACH POSTGRES '{shop.address.reference}' AS shop CDC 'auto'")
    assert [s.cdc for s in lake.ms.sources()] == ["auto"]
    lake.sql("DETACH shop")
    assert lake.ms.sources() == []
