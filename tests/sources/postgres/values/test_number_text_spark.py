"""Numbers all the way: captured, passed through stream tables by Spark, and served, as PostgreSQL prints them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.captured_lake import CapturedLake, open_captured
from kits.shops import Shop
from millstream import Action, Code, MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with shop.owner() as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    with open_captured(tmp_path / "lake", shop) as opened:
        yield opened


def printed(lake: CapturedLake, table: str, *columns: str) -> list[tuple[object, ...]]:
    texts = ", ".join(f"{c}::text" for c in columns)
    with lake.shop.server.superuser(lake.shop.name) as reader:
        return [tuple(row) for row in reader.execute(f"SELECT {texts} FROM {table} ORDER BY id".encode())]


def test_zeros_keep_their_sign_until_they_are_served(lake: CapturedLake) -> None:
    lake.run(
        "CREATE TABLE t (id int PRIMARY KEY, d float8, f real, ds float8[])",
        "INSERT INTO t VALUES (1, '-0', '-0', '{-0}'), (2, 0, 0, '{0}'), (3, 'NaN', '-Infinity', '{NaN}')",
    )
    lake.ms.create_stream_table("copy", "SELECT id, d, f, ds FROM shop.public.t", serve_to="shop.public.copy")
    for statement in (
        "INSERT INTO t VALUES (4, '-0', 0, '{0,-0}')",
        "UPDATE t SET d = -d, f = -f, ds = ARRAY[-ds[1]] WHERE id < 3",
        "UPDATE t SET d = '-0' WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
    ):
        assert printed(lake, "copy", "id", "d", "f", "ds") == printed(lake, "t", "id", "d", "f", "ds")
        lake.run(statement)
        assert lake.ms.refresh_stream_table("copy").action in (Action.DIFFERENTIAL, Action.APPEND_ONLY)
    assert printed(lake, "copy", "id", "d", "f", "ds") == printed(lake, "t", "id", "d", "f", "ds")


def test_a_number_out_of_range_is_refused_until_its_range_is_declared(lake: CapturedLake) -> None:
    lake.run(
        "CREATE TABLE t (id int PRIMARY KEY, price numeric)",
        "INSERT INTO t VALUES (1, 1.50), (2, 12345678901234567890.123456789012345678)",
    )
    lake.ms.create_stream_table("copy", "SELECT id, price FROM shop.public.t", serve_to="shop.public.copy")
    lake.stream("total", "SELECT SUM(price) AS total, COUNT(*) AS n FROM shop.public.t", "AUTO")
    # served numbers have as many decimals as their column's type, which says how many
    assert printed(lake, "copy", "price") == [("1.500000000000000000",), ("12345678901234567890.123456789012345678",)]
    lake.run("INSERT INTO t VALUES (3, 1e30)")
    for name in ("copy", "total"):
        with pytest.raises(MillstreamError) as caught:
            lake.ms.refresh_stream_table(name)
        assert caught.value.code is Code.VALUE_UNSUPPORTED
        assert "NUMERIC (public.t.price AS DECIMAL(38,7))" in str(caught.value.hint)
    lake.run("UPDATE t SET price = 2.125 WHERE id = 2")
    lake.ms.sql(f"ATTACH POSTGRES '{lake.shop.address.reference}' AS shop NUMERIC (public.t.price AS DECIMAL(38,4))")
    lake.refresh("total")
    lake.ms.refresh_stream_table("copy")
    for text in ("SELECT price::text AS p FROM shop.public.t", "SELECT price::text AS p FROM copy"):
        with pytest.raises(MillstreamError) as caught:  # PostgreSQL would print 1.50
            lake.ms.validate(text, dialect="postgres")
        assert caught.value.code is Code.UNSUPPORTED_SQL
    assert [row["price"] for row in lake.ms.table("copy").orderBy("id").collect()] == [
        Decimal("1.5000"),
        Decimal("2.1250"),
        Decimal(f"1{'0' * 30}.0000"),
    ]
    assert printed(lake, "copy", "price") == [("1.5000",), ("2.1250",), (f"1{'0' * 30}.0000",)]
    lake.run("INSERT INTO t VALUES (4, 0.0625)", "DELETE FROM t WHERE id = 3")
    assert lake.refresh("total").action == Action.DIFFERENTIAL
