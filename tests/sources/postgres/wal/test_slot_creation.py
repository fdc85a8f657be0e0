"""A slot is created without blocking anybody, within a time limit, and not across new definitions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from kits.wal_shops import WalShop, new_wal_shop
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.wal.slot import (
    drop_slot,
    slot_state,
)
from millstream.sources.postgres.wal.slot_creation import (
    SlotCreation,
    create_slot,
    current_snapshot,
    has_new_definitions,
)
from millstream.testing.postgres_server import FAST, LOGICAL, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def code_of(error: pytest.ExceptionInfo[MillstreamError]) -> Code:
    return error.value.code


def test_a_slot_waits_for_open_transactions_and_nobody_for_it(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        owner.execute("BEGIN; INSERT INTO t VALUES (1)")
        creation = SlotCreation(shop.address, shop.slot.name, 30)
        assert not creation.poll()
        assert not creation.poll(0.3)
        state = slot_state(connection, shop.slot.name)
        assert state is None or not state.is_ready
        owner.execute("COMMIT")
        assert creation.poll(10)
        state = slot_state(connection, shop.slot.name)
        assert state is not None
        assert state.is_ready
        assert (state.plugin, state.database, state.wal_status) == ("pgoutput", shop.name, "reserved")
        assert creation.poll()


def test_a_slot_that_takes_too_long_is_given_up(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        owner.execute("BEGIN; INSERT INTO t VALUES (1)")
        with pytest.raises(MillstreamError) as caught:
            create_slot(shop.address, shop.slot.name, 0.4)
        assert code_of(caught) is Code.LOCK_TIMEOUT
        left = SlotCreation(shop.address, shop.slot.name, 30)
        assert not left.poll(0.2)
        left.close()
        assert slot_state(connection, shop.slot.name) is None


def at_transaction(server: Server, number: int) -> None:
    """Have a server that has used so many transactions, and has frozen all it holds."""
    with server.superuser() as superuser:
        superuser.execute("UPDATE pg_database SET datallowconn = true")
        databases = [str(name) for (name,) in superuser.execute("SELECT datname FROM pg_database").fetchall()]
    for database in databases:
        with server.superuser(database) as superuser:
            superuser.execute("VACUUM (FREEZE)")
    server.stop()
    epoch, xid = divmod(number, 1 << 32)
    server._run("pg_resetwal", "-f", "-e", str(epoch), "-x", str(xid), "-D", str(server.data))
    statuses = server.data / "pg_xact" / f"{xid // (1 << 20):04X}"
    statuses.write_bytes(bytes(1 << 18))
    shutil.chown(statuses, server.data.stat().st_uid)
    server.start()


def test_definitions_of_any_age_are_distinguished_from_new_ones() -> None:
    """Rows that were frozen keep the ids of their transactions, which seem to be yet to come 2^31 later."""
    with Server({**FAST, **LOGICAL}) as old:
        shop = new_wal_shop(old)
        with shop.owner() as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for number in (1_900_000_000, 3_000_000_000, (1 << 32) + 500_000):
            at_transaction(old, number)
            with shop.owner() as owner, shop.connect() as connection:
                began = current_snapshot(connection)
                assert not has_new_definitions(connection, began)
                owner.execute("INSERT INTO t VALUES (1)")
                assert not has_new_definitions(connection, began)
                create_slot(shop.address, shop.slot.name, 10)
                assert drop_slot(connection, shop.slot.name)
                owner.execute("TRUNCATE t")
                assert has_new_definitions(connection, began)
                assert not has_new_definitions(connection, current_snapshot(connection))
