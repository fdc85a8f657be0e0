"""A captured table that is itself the target of logical replication: what the apply worker writes is captured too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop, new_shop
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from kits.wal_tables import Writer, always_surveyed, drop_slots
from millstream.catalog.attached import CaptureMode
from millstream.testing.postgres_server import FAST, LOGICAL, Server

__all__ = ["always_surveyed"]
pytestmark = pytest.mark.postgres

TABLE = "CREATE TABLE t (a int PRIMARY KEY, v text)"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Server]:
    """Another server, from which the changes come."""
    with Server({**FAST, **LOGICAL}) as started:
        yield started


@pytest.fixture
def publisher(elsewhere: Server) -> Iterator[Writer]:
    there = new_shop(elsewhere)
    with elsewhere.superuser(there.name) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 10) i")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        yield connection


@contextmanager
def subscribed(shop: Shop, publisher: Writer) -> Iterator[None]:
    """The shop's `t` is written by a subscription, which copies what is there first."""
    with shop.server.superuser(shop.name) as here:
        address = f"host={publisher.info.host} dbname={publisher.info.dbname} user=postgres"
        here.execute(f"CREATE SUBSCRIPTION {shop.name} CONNECTION '{address}' PUBLICATION p".encode())
        try:
            yield
        finally:
            here.execute(f"DROP SUBSCRIPTION {shop.name}".encode())


@pytest.mark.parametrize("cdc", ["wal", "trigger"])
def test_what_a_subscription_writes(server: Server, publisher: Writer, tmp_path: Path, cdc: str) -> None:
    shop: WalShop = new_owned_wal_shop(server)
    with psycopg.connect(server.url(shop.name, REPLICATOR), autocommit=True) as here:
        here.execute(TABLE)
        with subscribed(shop, publisher), open_kit(tmp_path / "lake", shop.address, cdc=cdc) as kit:
            until(lambda: rows(here) == 10)
            kit.read("r", "t", "a", "v")
            if cdc == "wal":
                until_mode_is_wal(kit, publisher, here)
            for statement in (
                "INSERT INTO t SELECT i, 'applied' FROM generate_series(100, 120) i",
                "UPDATE t SET v = 'changed' WHERE a % 2 = 0",
                "UPDATE t SET a = a + 1000 WHERE a < 5",
                "DELETE FROM t WHERE a > 110 AND a < 1000",
                "BEGIN; INSERT INTO t VALUES (7000, 'x'); DELETE FROM t WHERE a = 100; COMMIT",
            ):
                publisher.execute(statement.encode())
                applied(publisher, here)
                kit.tick()
                kit.assert_exact(here, "t")
            here.execute("INSERT INTO t VALUES (-1, 'a local write')")
            publisher.execute("INSERT INTO t VALUES (-2, 'beside it')")
            until(lambda: rows(here) == rows(publisher) + 1)
            kit.tick()
            kit.assert_exact(here, "t")
            publisher.execute("TRUNCATE t")
            until(lambda: rows(here) == 0)
            kit.tick()
            kit.assert_exact(here, "t")
            assert kit.database.mode is (CaptureMode.WAL if cdc == "wal" else CaptureMode.TRIGGER)
            drop_slots(shop)


def until_mode_is_wal(kit: Kit, publisher: Writer, here: Writer) -> None:
    """While changes go on being applied, so that none is lost where one way of capture ends and the other begins."""
    for number in range(60):
        if kit.database.mode is CaptureMode.WAL:
            return
        publisher.execute("INSERT INTO t VALUES (%s, 'meanwhile')", [-100 - number])
        applied(publisher, here)
        kit.tick()
        kit.assert_exact(here, "t")
    raise AssertionError(f"still {kit.database.mode}: {kit.database.state}")


def rows(connection: Writer) -> int:
    row = connection.execute("SELECT count(*) FROM t").fetchone()
    assert row is not None
    return int(row[0])


def applied(publisher: Writer, here: Writer) -> None:
    """Wait until both have the same rows."""
    until(lambda: contents(publisher) == contents(here))


def contents(connection: Writer) -> list[tuple[object, ...]]:
    return connection.execute("SELECT a, v FROM t ORDER BY a").fetchall()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.02)
