"""Ticks by the WAL of a reader that is far behind, which takes it in pieces."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import Writer, always_surveyed, kit, shop, until, writer
from millstream.capture import change_readers
from millstream.catalog.attached import CaptureMode

if TYPE_CHECKING:
    from kits.capture import Kit

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres


@contextmanager
def in_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_readers, "next_position", partial(change_readers.next_position, catch_up=(0, 8)))
        yield


def hinder(kit: Kit) -> None:
    """Have a table captured that has to be read by triggers, so that all others are put back to theirs."""
    kit.read("rc", "c", "k", "v")
    kit.tick()
    assert kit.database.mode is CaptureMode.WAL
    assert kit.database.state.triggers_installed is not None


def test_no_piece_is_the_last_reading_before_triggers(kit: Kit, writer: Writer, shop: WalShop) -> None:
    """They are in place at the snapshot that pieces begin with: a report has kept them from being removed."""
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as reader:
        kit.tick()
        reader.execute("SELECT FROM a, b")
        until(kit, CaptureMode.WAL, writer, "a", "b")
        hinder(kit)
        for number in range(8):
            writer.execute("INSERT INTO a SELECT i, i FROM generate_series(%s::int, %s + 9) i", [100 + 10 * number] * 2)
        with in_pieces():
            kit.tick()
        kit.assert_exact(writer, "a", "b", "c")
        assert kit.database.mode is CaptureMode.TRIGGER
        for _ in range(2):
            writer.execute("UPDATE a SET v = v + 1")
            kit.tick()
            kit.assert_exact(writer, "a", "b", "c")


@contextmanager
def waiting_for_a_standby(shop: WalShop, statement: str) -> Iterator[None]:
    """A transaction whose commit is in the WAL, and which nobody sees before the end of the block."""
    with shop.server.superuser() as superuser:

        def configure(setting: str) -> None:
            superuser.execute(f"ALTER SYSTEM {setting}")
            superuser.execute("SELECT pg_reload_conf()")

        def run() -> None:
            with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as connection:
                connection.execute("SET synchronous_commit = on")
                connection.execute(statement)

        thread = threading.Thread(target=run)
        try:
            configure("SET synchronous_standby_names = 'nobody'")  # all others commit without waiting for anything
            time.sleep(0.5)  # until the server has taken it
            thread.start()
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s"
            deadline = time.monotonic() + 10
            while superuser.execute(waiting, [shop.name]).fetchone() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield
        finally:
            configure("RESET synchronous_standby_names")
            thread.join()


def test_a_commit_that_waits_when_triggers_are_read_again(kit: Kit, writer: Writer, shop: WalShop) -> None:
    """It is in the WAL before any snapshot sees it: a piece that had it would have the buffers give it again."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    hinder(kit)
    with waiting_for_a_standby(shop, "INSERT INTO a VALUES (500, 1)"):
        for _ in range(4):
            writer.execute("UPDATE a SET v = v + 1 WHERE k < 500")
        with in_pieces():
            kit.tick()
        assert kit.database.mode is CaptureMode.TRIGGER
        kit.assert_exact(writer, "a", "b", "c")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b", "c")


def test_a_commit_that_waits_when_its_table_is_compared(kit: Kit, writer: Writer, shop: WalShop) -> None:
    """A piece that had it would have the mirror, compared at a snapshot that does not see it, lose it again."""
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, v int, w int)")
    kit.read("rd", "d", "k", "v")
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    with waiting_for_a_standby(shop, "INSERT INTO d VALUES (500, 1)"):
        for number in range(4):
            writer.execute("INSERT INTO d VALUES (%s, 1)", [number])
        with in_pieces():
            kit.read("rd2", "d", "w")
        kit.assert_exact(writer, "a", "b", "d")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b", "d")
    assert kit.database.mode is CaptureMode.WAL
