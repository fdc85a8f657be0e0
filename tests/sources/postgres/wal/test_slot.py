"""Slots: made without blocking, read without consuming, watched, lost; and what publishes tables for them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kits.shops import STRANGER
from kits.wal_shops import WalCapture, WalShop, new_wal_shop, publish
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.wal.eligibility import ineligible_error, server_hindrances
from millstream.sources.postgres.wal.slot import (
    advance,
    check_slot,
    drop_slot,
    flush_wal,
    peek,
    slot_of,
    slot_state,
)
from millstream.sources.postgres.wal.slot_creation import (
    create_slot,
)
from millstream.testing.postgres_server import FAST, LOGICAL, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def make(shop: WalShop, *names: str) -> None:
    """Tables with a key each, published, and a slot."""
    with shop.owner() as owner, shop.connect() as connection:
        for name in names:
            owner.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
        publish(shop, connection, [(find_relation(connection, name), ["id"]) for name in names])
    create_slot(shop.address, shop.slot.name, 30)


def code_of(error: pytest.ExceptionInfo[MillstreamError]) -> Code:
    return error.value.code


def test_names_fit_and_differ() -> None:
    names = [slot_of(lake, database).name for lake in ("a", "b") for database in ("shop", "Shop!", "x" * 100, "ü")]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name.islower() for name in names)


def test_reading_consumes_nothing_until_the_slot_is_advanced(shop: WalShop) -> None:
    make(shop, "t")
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("INSERT INTO t VALUES (1)")
        end = flush_wal(connection)
        first = list(peek(connection, shop.slot, end))
        assert [chr(m[0]) for m in first] == ["B", "R", "I", "C"]
        assert list(peek(connection, shop.slot, end)) == first
        stopped = peek(connection, shop.slot, end)
        next(stopped)
        stopped.close()
        advance(connection, shop.slot, end)
        assert list(peek(connection, shop.slot, flush_wal(connection))) == []
        advance(connection, shop.slot, end - 1)  # not backwards
        check_slot(connection, shop.slot, end)
        with pytest.raises(MillstreamError) as caught:
            check_slot(connection, shop.slot, end - 1)
        assert code_of(caught) is Code.CAPTURE_LOST


def test_a_slot_that_is_gone_is_lost_capture(shop: WalShop) -> None:
    make(shop, "t")
    with shop.connect() as connection:
        end = flush_wal(connection)
        assert drop_slot(connection, shop.slot.name)
        assert not drop_slot(connection, shop.slot.name)
        for call in (
            lambda: list(peek(connection, shop.slot, end)),
            lambda: advance(connection, shop.slot, end),
            lambda: check_slot(connection, shop.slot, end),
        ):
            with pytest.raises(MillstreamError) as caught:
                call()
            assert code_of(caught) is Code.CAPTURE_LOST


def test_a_stranger_may_not_use_slots(shop: WalShop) -> None:
    make(shop, "t")
    with shop.server.superuser() as superuser:
        if not superuser.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [STRANGER]).fetchone():
            superuser.execute(f"CREATE ROLE {STRANGER} LOGIN".encode())
    address = Address.parse(shop.server.url(shop.name, STRANGER))
    with connect(address) as connection:
        with pytest.raises(MillstreamError) as caught:
            list(peek(connection, shop.slot, 1))
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        with pytest.raises(MillstreamError) as caught:
            create_slot(address, "other", 5)
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        (hindrance,) = server_hindrances(connection, shop.slot.name)
        assert hindrance.remedy == f'ALTER ROLE "{STRANGER}" REPLICATION'
        error = ineligible_error([hindrance])
        assert (error.code, error.hint) == (Code.DATABASE_UNFIT, hindrance.remedy)


def test_wal_that_the_server_threw_away_is_lost_capture() -> None:
    small = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with Server({**FAST, **LOGICAL, **small}) as server:
        shop = new_wal_shop(server)
        with shop.owner() as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        capture = WalCapture.begin(shop, "t")
        with server.superuser(shop.name) as superuser:
            deadline = time.monotonic() + 60
            while (state := slot_state(capture.connection, shop.slot.name)) is not None and not state.is_lost:
                assert time.monotonic() < deadline
                superuser.execute("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000))")
                superuser.execute("SELECT pg_switch_wal()")
                superuser.execute("CHECKPOINT")
        with pytest.raises(MillstreamError) as caught:
            capture.tick()
        assert code_of(caught) is Code.CAPTURE_LOST
        with pytest.raises(MillstreamError) as caught:
            list(peek(capture.connection, shop.slot, flush_wal(capture.connection)))
        assert code_of(caught) is Code.CAPTURE_LOST
        capture.close()
