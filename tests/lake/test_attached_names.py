"""Names of attached tables, as the catalog and the database have them; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.shops import Shop
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.errors import Code, MillstreamError
from millstream.lake.attached_names import AttachedNames
from millstream.naming import TableName, attached_name
from millstream.ops import Column

pytestmark = pytest.mark.postgres


@pytest.fixture
def names(shop: Shop, tmp_path: Path) -> Iterator[AttachedNames]:
    """A catalog that lists the database as `shop`."""
    with Catalog.open(tmp_path) as catalog:
        catalog.put_database(
            AttachedDatabase(
                name="shop",
                address=shop.address.reference,
                cdc="auto",
                system=1,
                timeline=1,
                database=shop.name,
                database_oid=1,
            )
        )
        yield AttachedNames(catalog)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("shop.public.orders", "shop.public", "orders"),
        ("Shop.Public.ORDERS", "shop.public", "orders"),
        ('Shop."Public".`Orders`', "shop.`Public`", "Orders"),
        ("shop.public.`Order Lines`", "shop.public", "Order Lines"),
        ("shop.public.ÜNÏ", "shop.public", "ÜnÏ"),
        ('shop.public."ünï"', "shop.public", "ünï"),
        ('shop."a.b"."c`d"', "shop.`a.b`", "c`d"),
    ],
)
def test_names_of_three_parts_are_read_and_written(text: str, schema: str, name: str) -> None:
    parsed = TableName.parse(text)
    assert (parsed.schema, parsed.name, parsed.database) == (schema, name, "shop")
    assert TableName.parse(str(parsed)) == parsed
    assert attached_name(*parsed.parts) == parsed


@pytest.mark.parametrize("text", ["a.b.c.d", "a..b", "1a.b.c", "a.b.__ms_c", "a.`b", "`a`b.c.d", "shop.public."])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        TableName.parse(text)
    assert caught.value.code is Code.NAME_INVALID


def test_three_parts_or_two_where_they_are_unique(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute('CREATE TABLE orders (id bigint, "Line" int, p point)')
        owner.execute('CREATE TABLE "Order Lines" (id int)')
        owner.execute("CREATE SCHEMA other CREATE TABLE twice (id int)")
        owner.execute("CREATE TABLE public.twice (id int)")
    assert names.resolve(["Shop", "orders"]) == TableName("shop.public", "orders")
    assert str(names.resolve(["shop", "order lines"])) == "shop.public.`Order Lines`"
    assert names.relation(["shop", "public", "order lines"]).name == "Order Lines"
    with pytest.raises(MillstreamError) as caught:
        names.resolve(["shop", "twice"])
    assert caught.value.code is Code.NAME_AMBIGUOUS
    with pytest.raises(MillstreamError, match="the database shop has no table or view none") as caught:
        names.resolve(["shop", "none"])
    assert caught.value.code is Code.UNKNOWN_TABLE
    assert names.database(["lake", "orders"]) is None
    assert names.database(["orders"]) is None


def test_columns_have_spark_types_and_an_unsupported_one_only_a_reason(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TYPE boxes AS (a int, b int)")
        owner.execute('CREATE TABLE orders (id bigint, "Line" int, price numeric(10,2), cost money, place boxes)')
    source = names.source(TableName("shop.public", "orders"))
    assert source.id == "shop.public.orders"
    assert source.columns[:3] == (Column("id", "bigint"), Column("Line", "int"), Column("price", "decimal(10,2)"))
    assert [(c.name, c.type) for c in source.columns[3:]] == [("cost", "void"), ("place", "void")]
    assert [name for name, _ in source.unreadable] == ["cost", "place"]
    assert source.obstacle is None


def test_columns_that_differ_only_by_their_case_cannot_be_read(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute('CREATE TABLE t (a int, "A" int, b int, "ü" int, "Ü" int)')
    source = names.source(TableName("shop.public", "t"))
    assert [c.type for c in source.columns] == ["void", "void", "int", "void", "void"]


@pytest.mark.parametrize(("one", "two"), [("Orders", "orders"), ("Ünï", "ünï"), ("ünï", "ÜNÏ")])
def test_tables_that_differ_only_by_their_case_are_two(shop: Shop, names: AttachedNames, one: str, two: str) -> None:
    """Found exactly where the name is exactly so, in any case where that is one of them, and never mistaken."""
    with shop.owner() as owner:
        owner.execute(f'CREATE TABLE "{one}" (in_one int)')
        owner.execute(f'CREATE TABLE "{two}" (in_two int)')
    for exact in (False, True):
        for written, column in ((one, "in_one"), (two, "in_two")):
            parts = ["Shop", "public", written]
            assert names.relation(parts, exact=exact).columns[0].name == column
            assert names.resolve(parts, exact=exact) == TableName("shop.public", written)
            assert names.relation(["shop", written], exact=exact).columns[0].name == column
            assert names.source(names.resolve(parts)).columns[0].name == column
    assert names.source(TableName("shop.public", one)).id != names.source(TableName("shop.public", two)).id
    other = "".join(c.swapcase() if c.isascii() else c for c in one)
    if one.isascii():
        with pytest.raises(MillstreamError) as caught:
            names.relation(["shop", "public", other])
        assert caught.value.code is Code.NAME_AMBIGUOUS
    with shop.owner() as owner:
        owner.execute(f'DROP TABLE "{two}"')
    names.forget()
    assert names.relation(["shop", "public", other]).name == one
    assert names.resolve(["shop", "public", other]) == TableName("shop.public", one)
    with pytest.raises(MillstreamError) as caught:
        names.relation(["shop", "public", other], exact=True)
    assert caught.value.code is Code.UNKNOWN_TABLE
    assert names.resolve(["shop", "public", two], exact=True) == TableName("shop.public", two)


def test_schemas_that_differ_only_by_their_case_are_two(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE SCHEMA a CREATE TABLE t (small int)")
        owner.execute('CREATE SCHEMA "A" CREATE TABLE t (big int)')
    found = {schema: names.source(names.resolve(["shop", schema, "t"])) for schema in ("a", "A")}
    assert {schema: source.columns[0].name for schema, source in found.items()} == {"a": "small", "A": "big"}
    assert sorted(source.id for source in found.values()) == ["shop.`A`.t", "shop.a.t"]


def test_what_records_no_changes_says_so(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE MATERIALIZED VIEW m AS SELECT 1 AS one")
    assert names.source(TableName("shop.public", "m")).obstacle == "a materialized view records no changes"
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER f FOREIGN DATA WRAPPER w")
        superuser.execute("CREATE FOREIGN TABLE public.f (a int) SERVER f")
    assert names.source(TableName("shop.public", "f")).obstacle == "a foreign table records no changes"


def test_a_lookup_is_kept_until_it_is_forgotten(shop: Shop, names: AttachedNames) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (a int)")
        name = TableName("shop.public", "t")
        before = names.source(name)
        owner.execute("ALTER TABLE t ADD COLUMN b int")
        assert names.source(name) == before
        names.forget()
        assert [c.name for c in names.source(name).columns] == ["a", "b"]
