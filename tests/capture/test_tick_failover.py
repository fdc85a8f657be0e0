"""A standby takes over: it has not all that the primary had, and its transactions have the ids of lost ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from millstream.capture import mode_switch
from millstream.catalog.attached import CaptureMode
from millstream.postgres.address import Address
from millstream.testing.postgres_server import FAST, LOGICAL, Server

pytestmark = pytest.mark.postgres

URL = "MS_TEST_FAILOVER"
WRITES = (
    "CREATE TABLE a (k int PRIMARY KEY, v int)",
    "CREATE TABLE bag (v int)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO a VALUES (1, 1)",
    "INSERT INTO bag VALUES (1), (1)",
)


@pytest.fixture
def primary() -> Iterator[Server]:
    with Server({**FAST, **LOGICAL}) as started:
        yield started


def promote(standby: Server) -> None:
    standby.start()
    with standby.superuser() as superuser:
        assert superuser.execute("SELECT pg_is_in_recovery(), pg_promote()").fetchone() == (True, True)


@pytest.mark.parametrize("mode", [CaptureMode.TRIGGER, CaptureMode.WAL])
@pytest.mark.parametrize("is_caught_up", [False, True], ids=["with fewer transactions", "with as many transactions"])
def test_a_standby_takes_over(
    primary: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: CaptureMode, is_caught_up: bool
) -> None:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    shop = new_owned_wal_shop(primary)
    monkeypatch.setenv(URL, str(shop.address.reference))
    address, cdc = Address.parse(f"env:{URL}"), "auto" if mode is CaptureMode.WAL else "trigger"
    with open_kit(tmp_path / "lake", address, cdc=cdc) as kit, writing(shop) as old:
        for statement in WRITES:
            old.execute(statement)
        kit.read("ra", "a", "k", "v")
        kit.read("rb", "bag", "v")
        for key in range(100, 160):
            old.execute("INSERT INTO a VALUES (%s, 0)", [key])
            kit.tick()
            if kit.database.mode is mode:
                break
        assert kit.database.mode is mode
        with Server(primary=primary) as standby:
            standby.stop()
            for _ in range(3):  # these commits are lost
                old.execute("WITH x AS (UPDATE a SET v = v + 1) INSERT INTO bag VALUES (2)")
                kit.tick()
            kit.assert_exact(old, "a", "bag")
            assert kit.database.timeline == 1
            primary.stop("immediate")
            promote(standby)
            taken_over(kit, WalShop(standby, shop.name), monkeypatch, is_caught_up)
            kit.captures.close()


def taken_over(kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch, is_caught_up: bool) -> None:
    """The address leads to the new primary: all is read again, readers start over, and then it goes on as ever."""
    monkeypatch.setenv(URL, str(shop.address.reference))
    with writing(shop) as new:
        for key in range(200, 220 if is_caught_up else 201):
            new.execute("INSERT INTO a VALUES (%s, 9)", [key])
        kit.tick()
        kit.assert_exact(new, "a", "bag")
        assert kit.database.timeline == 2
        assert any("was replaced or restored" in said for said in kit.said)
        assert all("DATABASE_REPLACED" in (t.reinit_reason or "") for t in kit.catalog.list())
        said = len(kit.said)
        for _ in range(3):
            new.execute("WITH x AS (UPDATE a SET v = v + 1) INSERT INTO bag VALUES (3)")
            kit.tick()
            kit.assert_exact(new, "a", "bag")
        assert not any("was replaced" in text for text in kit.said[said:])
        kit.assert_nothing_twice()


def writing(shop: WalShop) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True)
