"""Names as PostgreSQL reads them, and what Spark, which ignores their case, is given for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Column
from millstream.sql.postgres import translate
from millstream.sql.postgres.references import table_names
from millstream.sql.sources import Source

LONG = "ü" * 40


class Shop:
    """An attached database with tables whose names differ by case only."""

    TABLES = ("orders", "Orders", "ünï", "Ünï", "ü" * 31)

    def find(self, parts: Sequence[str]) -> Source | None:
        if tuple(parts[:2]) != ("shop", "public") or parts[2] not in self.TABLES:
            return Source("lake", (Column("x", "int"),)) if tuple(parts) == ("lake",) else None
        columns = ("id", "a", "A") if parts[2] == "orders" else ("id", "b")
        return Source(f"shop.public.`{parts[2]}`", tuple(Column(name, "int") for name in columns))

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        raise AssertionError("nothing here needs Spark")

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expression]) -> bool:
        raise AssertionError("nothing here needs Spark")


def translated(text: str) -> str:
    return translate(text, Shop(), Shop()).spark_text


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ORDERS", "orders"),
        ('"Orders"', "Orders"),
        ('"Ünï"', "Ünï"),
        ("Ünï", "Ünï"),
        ("ÜNÏ", "ÜnÏ"),
        (LONG, LONG[:31]),
        (f'"{LONG}"', LONG[:31]),
    ],
)
def test_only_ascii_letters_are_folded_and_only_without_quotes(written: str, name: str) -> None:
    assert table_names(f"SELECT 1 FROM Shop.Public.{written}") == (("shop", "public", name),)


def test_a_table_is_read_under_its_own_name() -> None:
    assert "FROM `shop`.`public`.`Orders` AS `Orders`" in translated('SELECT id FROM shop.public."Orders"')
    assert "FROM `shop`.`public`.`orders` AS `orders`" in translated("SELECT id FROM shop.public.ORDERS")
    with pytest.raises(MillstreamError) as caught:
        translated("SELECT id FROM shop.public.ÜNÏ")
    assert caught.value.code is Code.UNKNOWN_TABLE


def test_names_that_spark_cannot_tell_apart_become_others() -> None:
    text = translated(
        'SELECT a.id, "A".id AS other FROM shop.public.orders a JOIN shop.public."Orders" "A" ON a.id = "A".id'
    )
    first, second = text.split(" FROM ")[1].split(" JOIN ")
    assert "AS `a`" in first
    assert "AS `A`" not in second
    inner = translated(
        'SELECT "A".id FROM shop.public."Orders" "A" '
        'WHERE EXISTS (SELECT 1 FROM shop.public.orders a WHERE a.id = "A".id)'
    )
    assert inner.count("`A`.`id`") == 2
    assert "`a`" not in inner


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM shop.public.orders",
        'SELECT "A" FROM shop.public.orders',
        "SELECT * FROM shop.public.orders",
        'SELECT x.a FROM (SELECT 1 AS a, 2 AS "A") AS x',
        'WITH w AS (SELECT 1 AS x), "W" AS (SELECT 2 AS x) SELECT * FROM w',
        'WITH "Lake" AS (SELECT 2 AS x) SELECT * FROM lake',
    ],
)
def test_what_would_be_mistaken_is_refused(text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        translated(text)
    assert caught.value.code is Code.UNSUPPORTED_SQL
