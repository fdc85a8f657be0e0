"""Tables of a database that can be captured by its WAL, and the captures of them: fixtures of tests of ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from millstream.capture import mode_switch
from millstream.catalog.attached import CaptureMode
from millstream.testing.postgres_server import Server

Writer = psycopg.Connection[Any]
BOTH = "WITH x AS (UPDATE a SET v = v + 1) UPDATE b SET v = v + 1"


@pytest.fixture(autouse=True)
def always_surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(mode_switch, "_BACK_OFF", timedelta())


@pytest.fixture
def shop(server: Server) -> WalShop:
    return new_owned_wal_shop(server)


@pytest.fixture
def writer(shop: WalShop) -> Iterator[Writer]:
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as connection:
        for statement in (
            "CREATE TABLE a (k int PRIMARY KEY, v int, more text)",
            "CREATE TABLE b (k int, v int)",
            "ALTER TABLE b REPLICA IDENTITY FULL",
            "CREATE TABLE c (k int, v int)",
            "INSERT INTO a SELECT i, i, repeat('x', 3000) FROM generate_series(1, 5) i",
            "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20)",
            "INSERT INTO c VALUES (1, 1)",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: WalShop, writer: Writer, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address, cdc="auto") as opened:
        opened.read("ra", "a", "k", "v", "more")
        opened.read("rb", "b", "k", "v")
        yield opened
        drop_slots(shop)


def drop_slots(shop: WalShop) -> None:
    """Slots outlive their databases' tests."""
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database() AND NOT active"
        )


def until(kit: Kit, mode: CaptureMode, writer: Writer, *tables: str, statement: str = BOTH) -> None:
    """Write and tick until the database is captured that way; exact after each tick."""
    for _ in range(60):
        if kit.database.mode is mode:
            return
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, *tables)
    raise AssertionError(f"still {kit.database.mode}: {kit.database.state}")
