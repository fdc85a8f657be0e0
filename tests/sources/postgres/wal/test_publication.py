"""The publication of captured tables: created, checked and repaired by the roles that may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.wal_shops import WalShop, new_wal_shop, publish
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.wal.publication import drop_publication, ensure_published, read_published
from millstream.sources.postgres.wal.slot import (
    drop_slot,
)
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def code_of(error: pytest.ExceptionInfo[MillstreamError]) -> Code:
    return error.value.code


def test_a_publication_is_made_by_whom_may(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute('CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE "Odd; name" (id int PRIMARY KEY, a int)')
        t, odd = find_relation(connection, "t"), find_relation(connection, "Odd; name")
        name = shop.slot.publication
        with pytest.raises(MillstreamError) as caught:
            ensure_published(connection, name, [(t, ["id"])])
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        publish(shop, connection, [(t, ["id"])])
        before = read_published(connection, name, [(t, ["id"])])
        assert not before.missing
        both = [(t, ["id"]), (odd, ["id", "a"])]
        assert set(read_published(connection, name, both).missing) == {odd.oid}
        publish(shop, connection, both)
        assert not read_published(connection, name, both).missing
        assert read_published(connection, name, both).fingerprints[t.oid] == before.fingerprints[t.oid]
        assert not drop_publication(connection, name)
    with connect(Address.parse(shop.server.url(shop.name, "shop_owner"))) as owning:
        ensure_published(owning, "own", both)
        assert drop_publication(owning, "own")


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER PUBLICATION {} DROP TABLE t",
        "ALTER PUBLICATION {} SET TABLE t (a)",
        "ALTER PUBLICATION {} SET TABLE t WHERE (id > 5)",
        "ALTER PUBLICATION {} SET (publish = 'insert')",
        "ALTER PUBLICATION {} SET (publish_via_partition_root = false)",
        "DROP PUBLICATION {}",
    ],
)
def test_a_publication_that_publishes_less_is_noticed_and_repaired_by_its_owner(shop: WalShop, damage: str) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int, a int, PRIMARY KEY (id))")
        wanted = [(find_relation(connection, "t"), ["id", "a"])]
        publish(shop, connection, wanted)
        before = read_published(connection, shop.slot.publication, wanted)
        owner.execute(damage.format(shop.slot.publication).encode())
        assert read_published(connection, shop.slot.publication, wanted).missing
        publish(shop, connection, wanted)
        after = read_published(connection, shop.slot.publication, wanted)
        assert not after.missing
        assert after.fingerprints != before.fingerprints  # changes may be missing


def test_a_publication_without_generated_columns_gets_them(shop: WalShop) -> None:
    if shop.server_version < 18:
        pytest.skip("before PostgreSQL 18 they cannot be published")
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)")
        name = f'"{shop.slot.publication}"'
        owner.execute(f"CREATE PUBLICATION {name} FOR TABLE g WITH (publish_via_partition_root = true)".encode())
        relation = find_relation(connection, "g")
        assert not read_published(connection, shop.slot.publication, [(relation, ["id"])]).missing
        assert read_published(connection, shop.slot.publication, [(relation, ["id", "d"])]).missing
        publish(shop, connection, [(relation, ["id", "d"])])


def test_a_partition_under_a_published_parent_is_not_published_itself(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE p (k int PRIMARY KEY) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        wanted = [(find_relation(connection, "p"), ["k"]), (find_relation(connection, "p1"), ["k"])]
        publish(shop, connection, wanted[:1])
        assert set(read_published(connection, shop.slot.publication, wanted).missing) == {wanted[1][0].oid}


def test_a_publication_waits_for_no_lock_for_long(shop: WalShop) -> None:
    impatient = BufferSettings(lock_timeout_ms=100, patience_seconds=0.3)
    address = Address.parse(shop.server.url(shop.name, "shop_owner"))
    with connect(address) as connection, connect(address) as other:
        connection.execute("CREATE TABLE public.held (id int)")
        relation = find_relation(connection, "held")
        with other.transaction():
            other.execute("LOCK TABLE public.held IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(MillstreamError) as caught:
                ensure_published(connection, "own", [(relation, ["id"])], impatient)
        assert caught.value.code is Code.LOCK_TIMEOUT
        ensure_published(connection, "own", [(relation, ["id"])], impatient)
        with other.transaction():
            other.execute("ALTER PUBLICATION own DROP TABLE public.held")
            with pytest.raises(MillstreamError) as caught:
                drop_publication(connection, "own", impatient)
        assert caught.value.code is Code.LOCK_TIMEOUT
        assert drop_publication(connection, "own", impatient)
