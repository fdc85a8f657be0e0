"""Stream tables whose queries are PostgreSQL's, from creation through refreshes to what is shown of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake
from millstream import Action, Code, MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS = "id INT, customer STRING, amount DECIMAL(10, 2), qty INT, placed TIMESTAMP_NTZ, doc STRING"


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake") as lake:
        lake.table(
            "orders",
            ORDERS,
            """1, 'ann', 10.50, 3, TIMESTAMP_NTZ'2024-01-31 10:00:00', '{"type": "new", "tags": ["a", "b"]}'""",
            """2, 'bob', 20.00, -7, TIMESTAMP_NTZ'2024-02-29 23:59:59', '{"type": "old", "n": 1.50}'""",
            """3, NULL, NULL, 0, NULL, NULL""",
        )
        lake.table("customers", "name STRING, city STRING", "'ann', 'Rome'", "'bob', NULL")
        yield lake


QUERIES = {
    "projected": """SELECT id, customer || '-' || id AS tag, qty / 2 AS half, amount * qty AS value,
                           placed + interval '1 month' AS due, COALESCE(customer, 'none') AS "Name",
                           doc ->> 'type' AS kind
                    FROM orders WHERE customer IS DISTINCT FROM 'carl'""",
    "grouped": """SELECT date_trunc('month', placed) AS month, count(*), sum(qty) AS qty, avg(qty) AS mean,
                         sum(amount) FILTER (WHERE qty > 0) AS sold, min(customer) AS first
                  FROM orders GROUP BY 1 HAVING count(*) > 0""",
    "joined": """SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON c.name = o.customer
                 WHERE o.qty % 2 <> 0 OR c.city ILIKE 'r%'""",
    "quantified": "SELECT id FROM orders WHERE qty >= ALL (SELECT qty FROM orders WHERE customer IS NOT NULL)",
    "unmatched": "SELECT id FROM orders WHERE customer NOT IN (SELECT name FROM customers WHERE city IS NOT NULL)",
    "first": "SELECT DISTINCT ON (customer) customer, id, qty FROM orders ORDER BY customer, qty DESC, id",
    "ranked": """SELECT id, row_number() OVER (PARTITION BY customer ORDER BY qty DESC, id) AS place,
                        sum(qty) OVER (PARTITION BY customer) AS total
                 FROM orders""",
    "tags": """SELECT o.id, t.tag, t.place
               FROM orders o, jsonb_array_elements_text(o.doc -> 'tags') WITH ORDINALITY AS t(tag, place)""",
    "days": "SELECT o.id, d FROM orders o, generate_series(1, o.qty) AS d",
    "latest": """SELECT c.name, x.id FROM customers c LEFT JOIN LATERAL (
                   SELECT o.id FROM orders o WHERE o.customer = c.name ORDER BY o.placed DESC, o.id LIMIT 1
                 ) AS x ON true""",
    "above": "SELECT id, qty - (SELECT min(qty) FROM orders) AS more FROM orders",
    "some": "SELECT id, qty > ANY (SELECT qty FROM orders WHERE customer IS NOT NULL) AS beats FROM orders",
    "lists": """SELECT customer, array_agg(id ORDER BY id DESC) AS ids, string_agg(customer, ',' ORDER BY id) AS names,
                       percentile_cont(0.5) WITHIN GROUP (ORDER BY qty) AS median, bool_or(qty > 0) AS any_sold
                FROM orders GROUP BY customer""",
    "chain": """WITH RECURSIVE r AS (
                  SELECT id, qty FROM orders WHERE id = 1
                  UNION
                  SELECT o.id, o.qty FROM orders o JOIN r ON o.id = r.id + 1
                ) SELECT * FROM r""",
    "totals": "SELECT customer, count(*) AS n, grouping(customer) AS g FROM orders GROUP BY ROLLUP (customer)",
    "together": "SELECT customer FROM orders UNION SELECT name FROM customers WHERE name ~ '^b'",
}


@pytest.mark.filterwarnings("ignore::millstream.notices.NoticeWarning")  # ties of ROW_NUMBER
def test_what_deltas_can_follow_is_followed(shop: Lake) -> None:
    wrong = []
    for name, query in QUERIES.items():
        try:
            shop.ms.create_stream_table(name, query, refresh_mode="DIFFERENTIAL STRICT", dialect="postgres")
            shop.assert_exact(name)
        except (AssertionError, MillstreamError) as e:
            wrong.append(f"{name}: {e}")
    assert not wrong, "\n".join(wrong)
    shop.insert(
        "orders",
        "4, 'ann', 5.25, 9, TIMESTAMP_NTZ'2024-01-01 00:00:00', '{\"type\": 5}'",
        "5, 'carl', 1.00, -1, NULL, '[]'",
    )
    shop.sql("UPDATE orders SET qty = qty + 5 WHERE id = 2", "DELETE FROM customers WHERE name = 'bob'")
    for name in QUERIES:
        try:
            result = shop.refresh(name)
            assert result.action in {Action.DIFFERENTIAL, Action.APPEND_ONLY}, f"{result.action} ({result.reason})"
        except (AssertionError, MillstreamError) as e:
            wrong.append(f"{name}: {e}")
    assert not wrong, "\n".join(wrong)
    shop.sql("DELETE FROM orders WHERE id IN (1, 3)", "INSERT INTO customers VALUES ('carl', 'Riga')")
    for name in QUERIES:
        shop.refresh(name)
    assert sorted(tuple(r) for r in shop.ms.table("projected").select("tag", "half", "kind").collect()) == [
        ("ann-4", 4, "5"),
        ("bob-2", -1, "old"),
    ]


def test_the_users_text_is_kept_and_shown(shop: Lake) -> None:
    query = "SELECT id / 2 AS half FROM orders"
    shop.ms.create_stream_table("halves", query, dialect="postgres")
    shown = {r[0]: r[1] for r in shop.ms.sql("DESCRIBE STREAM TABLE halves").collect()}
    assert shown["# Query"] == query
    assert shown["# Dialect"] == "postgres"
    assert "DIV" in str(shop.ms.explain("halves"))
    assert "DIV" in str(shop.ms.validate(query, dialect="postgres"))


def test_altering_keeps_the_dialect_unless_told(shop: Lake) -> None:
    shop.ms.create_stream_table("halves", "SELECT id, qty / 2 AS half FROM orders", dialect="postgres")
    shop.ms.alter_stream_table("halves", query="SELECT id, qty::numeric(5, 1) / 2 AS half FROM orders")
    shop.refresh("halves")
    shop.ms.alter_stream_table("halves", query="SELECT id, qty / 2 AS half FROM orders", dialect="spark")
    shop.refresh("halves")
    assert dict(shop.ms.table("halves").dtypes)["half"] == "double"
    shop.ms.alter_stream_table("halves", query="SELECT id, qty / 2 AS half FROM orders", dialect="postgres")
    shop.ms.alter_stream_table("halves", refresh_mode="FULL")
    shop.refresh("halves")
    assert dict(shop.ms.table("halves").dtypes)["half"] == "int"


def test_a_source_of_another_type_is_translated_anew(shop: Lake) -> None:
    shop.table("t", "x INT", "7", more="")
    shop.ms.create_stream_table("halves", "SELECT x / 2 AS half FROM t", dialect="postgres")
    shop.sql(
        "ALTER TABLE t SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER TABLE t ALTER COLUMN x TYPE BIGINT",
    )
    shop.sql("INSERT INTO t VALUES (9000000000)")
    shop.refresh("halves")
    assert sorted(r[0] for r in shop.ms.table("halves").collect()) == [3, 4500000000]


def test_errors_point_into_the_users_text(shop: Lake) -> None:
    with pytest.raises(MillstreamError) as caught:
        shop.ms.create_stream_table("bad", "SELECT id,\n  soundex(customer)\nFROM orders", dialect="postgres")
    assert caught.value.code is Code.UNSUPPORTED_SQL
    assert str(caught.value.position) == "line 2, column 3"
    with pytest.raises(MillstreamError) as caught:
        shop.ms.create_stream_table("bad", "SELECT id FROM orders GROUP BY qty", dialect="postgres")
    assert caught.value.code is Code.QUERY_INVALID
    assert caught.value.sql == "SELECT id FROM orders GROUP BY qty"
    with pytest.raises(MillstreamError) as caught:
        shop.ms.create_stream_table("bad", "SELECT 1", dialect="oracle")
    assert caught.value.code is Code.UNSUPPORTED_SQL


def test_what_deltas_cannot_follow_is_recomputed(shop: Lake) -> None:
    query = "SELECT customer, random() < 2 AS ok FROM orders"
    with pytest.raises(MillstreamError) as caught:
        shop.ms.create_stream_table("lucky", query, refresh_mode="DIFFERENTIAL", dialect="postgres")
    assert caught.value.code is Code.VOLATILE_FUNCTION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shop.ms.create_stream_table("lucky", query, dialect="postgres")
    assert shop.ms.refresh_stream_table("lucky", mode="FULL").action == Action.FULL


def test_views_have_postgresqls_types_too(shop: Lake) -> None:
    shop.sql("CREATE VIEW big AS SELECT id, qty, customer AS Who FROM orders WHERE amount > 10")
    shop.ms.create_stream_table("halves", "SELECT who, qty / 2 AS half FROM big", dialect="postgres")
    shop.assert_exact("halves")
    assert sorted(r[1] for r in shop.ms.table("halves").collect()) == [-3, 1]
