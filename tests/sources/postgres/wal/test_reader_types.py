"""Values of every type as the WAL has them are those of a COPY, as those of triggers are (test_kept_columns.py)."""

from __future__ import annotations

import pytest
from psycopg import sql

from kits.type_cases import CASES, EXTENSION_CASES, Case, create_extensions, create_types
from kits.wal_shops import WalCapture, WalShop, new_wal_shop
from millstream.sources.postgres.wal.slot import drop_slot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def typed(server: Server) -> WalShop:
    shop = new_wal_shop(server)
    create_types(shop)
    return shop


@pytest.fixture(scope="module")
def extended(old_server: Server) -> WalShop:
    """The wheel's server has no citext, hstore, ltree and xml."""
    shop = new_wal_shop(old_server)
    create_extensions(shop)
    return shop


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_a_copy(typed: WalShop, case: Case, identity: str) -> None:
    followed_as_copied(typed, case, identity)


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("case", EXTENSION_CASES, ids=str)
def test_values_of_extensions_are_those_of_a_copy(extended: WalShop, case: Case, identity: str) -> None:
    followed_as_copied(extended, case, identity)


def followed_as_copied(shop: WalShop, case: Case, identity: str) -> None:
    with shop.owner() as owner:
        owner.execute("DROP TABLE IF EXISTS t")
        owner.execute(sql.SQL("CREATE TABLE t (n serial PRIMARY KEY, v {})").format(sql.SQL(case.type)))
        owner.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}".encode())
        capture = WalCapture.begin(shop, "t")
        assert [c.spark_type for c in capture.captured["t"][1] if c.name == "v"] == [case.spark]
        try:
            for text, _ in (*case.values, (None, None)):
                if not (case.type == "interval" and "infinity" in str(text) and shop.server_version < 17):
                    owner.execute(sql.SQL("INSERT INTO t (v) VALUES ({})").format(sql.Literal(text)))
            capture.tick()  # compares with a COPY
            owner.execute("UPDATE t SET n = n + 1000")
            capture.tick()
            owner.execute("DELETE FROM t WHERE n % 2 = 0")
            capture.tick()
        finally:
            drop_slot(capture.connection, shop.slot.name)
            capture.connection.execute("SELECT 1")
            capture.close()
            owner.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(shop.slot.publication)))
