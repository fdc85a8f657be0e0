"""Ticks, and captures that begin, are cut short: by SIGKILL at every step, by a lost connection, by a server that dies.

The next tick makes everything right, once: mirrors are what their tables are, and what was half-made is gone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, killed_at, open_kit
from kits.shops import Shop, new_shop
from millstream import Code, MillstreamError
from millstream.catalog.models import ObjectKind
from millstream.naming import TableName
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

Owner = psycopg.Connection[Any]
CLEAN_UP, SOURCE = "millstream.capture.stages.clean_up", "millstream.capture.installation"
BOTH = "WITH x AS (UPDATE a SET v = v + 1) UPDATE b SET v = v + 1"
TABLES = (
    "CREATE TABLE a (k int PRIMARY KEY, v int, more text)",
    "CREATE TABLE b (k int, v int)",
    "INSERT INTO a VALUES (1, 10, 'x'), (2, 20, 'y')",
    "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20)",
)
Point = tuple[str, str, int]


def named(point: Point) -> str:
    return f"{point[1]} {point[0].rpartition(':')[2]} {point[2]}"


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in TABLES:
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: Shop, owner: Owner, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address) as opened:
        yield opened


def read_both(kit: Kit) -> None:
    kit.read("ra", "a", "k", "v")
    kit.read("rb", "b", "k", "v")
    kit.tick()


@pytest.mark.parametrize(
    "point",
    [
        ("put_database", "before", 1),
        ("put_database", "after", 1),
        ("apply", "after", 1),
        ("apply", "after", 2),
        ("put_database", "before", 2),
        ("put_database", "after", 2),
        (f"{CLEAN_UP}:trim", "after", 1),
    ],
    ids=named,
)
def test_a_tick_of_two_tables(kit: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    read_both(kit)
    owner.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    owner.execute(BOTH)
    owner.execute("DELETE FROM b WHERE ctid = (SELECT max(ctid) FROM b)")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(owner, "a", "b")
        kit.assert_nothing_twice()
        assert kit.database.open_tick is None
        owner.execute(BOTH)


@pytest.mark.parametrize(
    "point", [("apply", "before", 1), ("apply", "after", 1), ("put_database", "before", 2)], ids=named
)
def test_a_tick_that_compares(kit: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    read_both(kit)
    owner.execute("ALTER TABLE a ALTER v TYPE int USING v * 2")
    owner.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    owner.execute(BOTH)
    owner.execute("ALTER TABLE b ALTER v TYPE int USING v * 3")
    kit.tick()
    kit.assert_exact(owner, "a", "b")
    kit.assert_nothing_twice()


@pytest.mark.parametrize(
    "point",
    [
        ("put_database", "after", 1),
        (f"{SOURCE}:install", "after", 1),
        ("create", "after", 1),
        ("append", "after", 1),
        ("put_lake_object", "before", 1),
        ("put_lake_object", "after", 1),
        ("create_stream_table", "before", 1),
    ],
    ids=named,
)
def test_a_capture_that_begins(kit: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    kit.read("rb", "b", "k", "v")
    killed_at(kit.root, shop.address, point, "read", "ra", "a", "k", "v")
    owner.execute(BOTH)
    kit.read("ra", "a", "k", "v")
    owner.execute(BOTH)
    kit.tick()
    kit.assert_exact(owner, "a", "b")
    assert len(list((kit.root / "mirrors").iterdir())) == len(kit.catalog.captures("shop")) == 2


@pytest.mark.parametrize("point", [("append", "before", 1), ("put_lake_object", "before", 1)], ids=named)
def test_a_capture_that_is_loaded_again(kit: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    """Its columns have other types: the old mirror stays until there is another one."""
    read_both(kit)
    owner.execute("ALTER TABLE a ALTER v TYPE bigint")
    kit.tick()
    killed_at(kit.root, shop.address, point, "read", "rc", "a", "v")
    name = TableName.parse("shop.public.a")
    item = kit.catalog.lake_object(ObjectKind.TABLE, name)
    assert item is not None
    assert Path(str(item.location)).exists()
    kit.tick()
    kit.read("rc", "a", "v")
    owner.execute(BOTH)
    kit.tick()
    kit.assert_exact(owner, "a", "b")
    assert len(list((kit.root / "mirrors").iterdir())) == 2


def test_a_capture_that_nobody_came_to_read(kit: Kit, owner: Owner, shop: Shop) -> None:
    kit.read("rb", "b", "k", "v")
    killed_at(kit.root, shop.address, ("create_stream_table", "before", 1), "read", "ra", "a", "k", "v")
    assert len(kit.catalog.captures("shop")) == 2
    owner.execute(BOTH)
    kit.tick()
    assert [c.table for c in kit.catalog.captures("shop")] == ["b"]
    assert owner.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'a'::regclass").fetchone() == (0,)


@pytest.mark.parametrize(
    "point", [("widen", "before", 1), ("widen", "after", 1), ("put_database", "before", 3)], ids=named
)
def test_more_columns(kit: Kit, owner: Owner, shop: Shop, point: Point) -> None:
    read_both(kit)
    owner.execute(BOTH)
    killed_at(kit.root, shop.address, point, "read", "rc", "a", "more")
    owner.execute("UPDATE a SET more = 'z', v = 0 WHERE k = 1")
    kit.tick()
    kit.assert_exact(owner, "a", "b")
    kit.read("rc", "a", "more")
    owner.execute("UPDATE a SET more = 'w'")
    kit.tick()
    kit.assert_exact(owner, "a", "b")
    assert len(kit.capture("a").columns) == 3
    kit.assert_nothing_twice()


def test_a_lost_connection_is_made_again(kit: Kit, owner: Owner, shop: Shop) -> None:
    read_both(kit)
    owner.execute(BOTH)
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'millstream'")
    kit.tick()
    kit.assert_exact(owner, "a", "b")


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    with Server({"fsync": "on"}) as server:
        shop = new_shop(server)
        with shop.owner() as owner, open_kit(tmp_path / "lake", shop.address) as kit:
            for statement in TABLES:
                owner.execute(statement)
            read_both(kit)
            owner.execute(BOTH)
            server.stop("immediate")
            with pytest.raises(MillstreamError) as caught:
                kit.tick()
            assert caught.value.code is Code.DATABASE_UNREACHABLE
            server.start()
            kit.tick()
            with shop.owner() as again:
                kit.assert_exact(again, "a", "b")


def test_commits_that_a_server_forgets_are_counted_nowhere(tmp_path: Path) -> None:
    """A commit with synchronous_commit = off is seen before it is durable, and its id is used again after a crash."""
    with Server({"synchronous_commit": "off"}) as server:
        shop = new_shop(server)
        with shop.owner() as owner, open_kit(tmp_path / "lake", shop.address) as kit:
            for statement in TABLES:
                owner.execute(statement)
            read_both(kit)
            with server.superuser(shop.name) as superuser:
                superuser.execute("CHECKPOINT")
                query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
                (pid,) = superuser.execute(query).fetchone() or (0,)
            os.kill(int(str(pid)), signal.SIGSTOP)  # nobody else writes the WAL out now
            for _ in range(3):
                owner.execute(BOTH)
            kit.tick()
            server.stop("immediate")
            server.start()
            with shop.owner() as again:
                for _ in range(3):
                    again.execute("INSERT INTO b VALUES (9, 9)")
                kit.tick()
                kit.assert_exact(again, "a", "b")


def test_a_server_that_dies_under_load(tmp_path: Path) -> None:
    with Server({"synchronous_commit": "off", "wal_writer_delay": "1s"}) as server:
        shop = new_shop(server)
        with shop.owner() as owner, open_kit(tmp_path / "lake", shop.address) as kit:
            for statement in TABLES:
                owner.execute(statement)
            read_both(kit)
            for _ in range(2):
                stop = threading.Event()
                writer = threading.Thread(target=_write, args=(shop, stop))
                writer.start()
                until = time.monotonic() + 1.0
                while time.monotonic() < until:
                    kit.tick()
                server.stop("immediate")
                stop.set()
                writer.join()
                server.start()
                with shop.owner() as again:
                    kit.tick()
                    kit.assert_exact(again, "a", "b")
                    again.execute(BOTH)
                    kit.tick()
                    kit.assert_exact(again, "a", "b")


def _write(shop: Shop, stop: threading.Event) -> None:
    try:
        with shop.owner() as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute(BOTH)
                connection.execute("INSERT INTO b VALUES (%s, 0)", [number])
    except psycopg.OperationalError:
        return  # the server is gone


def test_another_database_under_the_address(kit: Kit, owner: Owner, shop: Shop) -> None:
    """Restored from a dump: other oids, another history; the mirrors become what it holds, and readers start over."""
    read_both(kit)
    owner.execute(BOTH)
    kit.tick()
    with Server({"fsync": "off"}) as other:
        new = other.new_database("shop_owner", "millstream")
        with psycopg.connect(other.url(new, "shop_owner"), autocommit=True) as restored:
            restored.execute(f'GRANT CREATE ON DATABASE "{new}" TO millstream')
            restored.execute("GRANT USAGE ON SCHEMA public TO millstream")
            restored.execute("CREATE TABLE pad (i int)")
            for statement in TABLES:
                restored.execute(statement)
            restored.execute("GRANT SELECT, TRIGGER ON a, b TO millstream")
            restored.execute("INSERT INTO a VALUES (9, 9, 'restored')")
            database = kit.database
            kit.catalog.put_database(replace(database, address=other.url(new, "millstream")))
            kit.tick()
            kit.assert_exact(restored, "a", "b")
            assert all("DATABASE_REPLACED" in (t.reinit_reason or "") for t in kit.catalog.list())
            restored.execute(BOTH)
            kit.tick()
            kit.assert_exact(restored, "a", "b")
            kit.captures.close()
