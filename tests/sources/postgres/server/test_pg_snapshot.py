"""Snapshots and LSNs as the server prints them, and ids of transactions completed from 32 bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.wal_shops import WalShop, new_wal_shop
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.lsn import parse_lsn, print_lsn
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


def test_lsns_and_snapshots_are_read_as_the_server_writes_them(shop: WalShop) -> None:
    with shop.connect() as connection, shop.owner() as owner:
        owner.execute("BEGIN; SELECT pg_current_xact_id()")
        (text, own), *_ = connection.execute(
            "SELECT pg_current_snapshot()::text, pg_current_xact_id()::text"
        ).fetchall()
        snapshot = PgSnapshot.parse(text)
        assert str(snapshot) == text
        for xid in range(snapshot.xmin - 3, snapshot.xmax + 3):
            row = connection.execute("SELECT pg_visible_in_snapshot(%s::text::xid8, %s::pg_snapshot)", [xid, text])
            assert row.fetchone() == (snapshot.sees(xid),)
        assert not snapshot.sees(int(own))
        for lsn in ("0/0", "0/1AF6B28", "FFFFFFFF/FFFFFFFF"):
            assert connection.execute("SELECT %s::pg_lsn - '0/0'::pg_lsn", [lsn]).fetchone() == (parse_lsn(lsn),)
            assert print_lsn(parse_lsn(lsn)) == lsn


@pytest.mark.parametrize("xmax", [2**31 + 7, 2**32 + 5, 5 * 2**32 - 3, 100])
def test_a_short_transaction_id_is_completed(xmax: int) -> None:
    snapshot = PgSnapshot(xmax, xmax, frozenset())
    for full in (xmax - 2**31 + 1, xmax - 1, xmax, xmax + 1000, xmax + 2**31 - 1):
        if full > 0:
            assert snapshot.full_xid(full & (2**32 - 1)) == full
