"""The server crashes in the midst of it: what was read is there afterwards, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from kits.mode_switch import TRANSITIONING, TRIGGER, WAL, SwitchingCapture
from kits.wal_shops import WalShop, new_wal_shop
from millstream.errors import MillstreamError
from millstream.testing.postgres_server import LOGICAL, Server

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server that loses nothing that it said was committed; some writers do not wait for that."""
    with Server({**LOGICAL, "wal_writer_delay": "10s"}) as server:
        yield server


@pytest.fixture
def shop(durable: Server) -> WalShop:
    shop = new_wal_shop(durable)
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        owner.execute("CREATE TABLE k (a int); ALTER TABLE k REPLICA IDENTITY FULL")
    return shop


class Crashing(SwitchingCapture):
    """The process ends at some point of a poll, and is started again with what it had stored."""

    at = ""

    def _after(self) -> None:
        if self.at == "before the slot is advanced":
            raise ConnectionError
        super()._after()


@pytest.mark.long
@pytest.mark.parametrize("at", ["between polls", "before the slot is advanced"])
@pytest.mark.parametrize("mode", [TRIGGER, TRANSITIONING, WAL, "back"])
def test_a_crash_in_every_mode(durable: Server, shop: WalShop, mode: str, at: str) -> None:
    capture = Crashing(shop, ["t", "k"], stay=0, check_every=1)
    capture.start()
    while capture.mode != (WAL if mode == "back" else mode):
        capture.poll()
    capture.stay = 0 if mode == "back" else None
    for round_ in range(3):
        owner, idle = shop.owner(), shop.owner()
        owner.execute("SET synchronous_commit = off")
        idle.execute(f"BEGIN; INSERT INTO t VALUES ({9000 + round_}, 0)".encode())
        for i in range(10):
            owner.execute("INSERT INTO t VALUES (%s, 0)", [100 * round_ + i])
            owner.execute("INSERT INTO k VALUES (%s)", [i])
        owner.execute(b"UPDATE t SET a = a + 1 WHERE id % 3 = 0; DELETE FROM k WHERE a = 4")
        capture.at = at
        with suppress(ConnectionError):
            capture.poll()
        seen = capture.bags
        owner.execute(b"DELETE FROM t WHERE id % 2 = 0; UPDATE k SET a = a + 1")  # perhaps lost
        durable.stop("immediate")
        owner.close()
        idle.close()
        with pytest.raises((psycopg.Error, MillstreamError)):
            capture.poll()
        durable.start()
        capture.at = ""
        capture.reconnect()
        with shop.owner() as owner:
            rows = owner.execute("SELECT count(*) FROM t WHERE id BETWEEN %s AND %s", [100 * round_, 100 * round_ + 9])
            assert rows.fetchone() in [(10,), (5,)]
            assert (9000 + round_, 0) not in seen["t"]
            owner.execute("INSERT INTO k VALUES (77)")
        capture.poll()  # compares
        if mode == "back":
            capture.stay = 0
    capture.poll()
    capture.close()


def test_commits_that_were_never_durable_are_not_read(durable: Server, shop: WalShop) -> None:
    """Their transaction ids are used again after a crash: read once, they would hide other transactions for good."""
    capture = Crashing(shop, ["t", "k"], check_every=1)
    capture.start()
    for mode in (TRIGGER, WAL):
        while capture.mode != mode:
            capture.stay = 0
            capture.poll()
        capture.stay = None
        for i in range(5):
            owner = shop.owner()
            owner.execute("SET synchronous_commit = off")
            owner.execute("INSERT INTO k VALUES (%s)", [i])
            capture.at = "before the slot is advanced"
            with suppress(ConnectionError):
                capture.poll()
            durable.stop("immediate")
            owner.close()
            durable.start()
            capture.at = ""
            capture.reconnect()
            with shop.owner() as owner:
                owner.execute("INSERT INTO k VALUES (%s)", [100 + i])
            capture.poll()
    assert len(capture.bags["k"]) == 10
    capture.close()
