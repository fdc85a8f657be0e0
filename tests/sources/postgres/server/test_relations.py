"""What is read of the server's catalog: names, columns, keys, partitions, fingerprints."""

from __future__ import annotations

import pytest

from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.postgres.identity import identify
from millstream.sources.postgres.server.relations import RelationKind, find_relation, read_relations

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@host/db",
        "host=h password=secret",
        "postgres://a:secret@b",
        "postgres://b/db?sslpassword=secret",
        "host=h oauth_client_secret=secret",
        "host=h scram_client_key=secret",
        "postgres://b/db?scram_server_key=secret",
    ],
)
def test_a_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        Address.parse(text)
    assert caught.value.code is Code.SECRET_IN_ADDRESS
    assert "secret" not in str(caught.value)


def test_a_variable_holds_the_url(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address.parse("env:MS_TEST_SHOP")
    with pytest.raises(MillstreamError, match="MS_TEST_SHOP is not set"):
        connect(address)
    monkeypatch.setenv("MS_TEST_SHOP", shop.address.reference.replace("millstream@", "millstream:secret@"))
    with connect(address) as connection:
        assert identify(connection).database == shop.name
    assert "secret" not in repr(address)


def test_an_unreachable_server_is_a_coded_error() -> None:
    with pytest.raises(MillstreamError) as caught:
        connect(Address.parse("postgresql://nobody@/none?host=/nowhere"))
    assert caught.value.code is Code.DATABASE_UNREACHABLE


def test_columns_keys_and_types(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        owner.execute("CREATE DOMAIN price AS numeric(10,2) CHECK (value > 0)")
        owner.execute(
            'CREATE TABLE orders (id bigint, "Line" int, m mood, p price NOT NULL, tags varchar(9)[], gone int, '
            'g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY ("Line", id))'
        )
        owner.execute("ALTER TABLE orders DROP COLUMN gone")
    with shop.connect() as connection:
        found = find_relation(connection, "ORDERS")
    assert (found.schema, found.kind, found.key) == ("public", RelationKind.TABLE, ("Line", "id"))
    assert [c.name for c in found.columns] == ["id", "Line", "m", "p", "tags", "g"]
    assert (found.column("m").base, found.column("m").type_kind) == ("public.mood", "e")
    assert (found.column("p").base, found.column("p").not_null) == ("numeric(10,2)", True)
    assert found.column("tags").element == "character varying(9)"
    assert found.column("g").generated == "s"


def test_a_name_in_two_schemas_has_to_be_qualified(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE SCHEMA other CREATE TABLE orders (id int)")
        owner.execute("CREATE TABLE public.orders (id int)")
    with shop.connect() as connection:
        with pytest.raises(MillstreamError) as caught:
            find_relation(connection, "orders")
        assert caught.value.code is Code.NAME_AMBIGUOUS
        assert "other.orders or public.orders" in caught.value.message
        assert find_relation(connection, "orders", "other").schema == "other"
        with pytest.raises(MillstreamError) as caught:
            find_relation(connection, "lines")
        assert caught.value.code is Code.UNKNOWN_TABLE


def test_partitions_are_the_leaves(shop: Shop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE p (k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (v)")
        owner.execute("CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN ('a')")
        found = find_relation(connection, "p")
        assert [leaf.name for leaf in found.leaves] == ["p1", "p2a"]
        owner.execute("ALTER TABLE p DETACH PARTITION p1")
        now = read_relations(connection, [found.oid])[found.oid]
        assert [leaf.name for leaf in now.leaves] == ["p2a"]
