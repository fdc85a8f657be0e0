"""Attaching a database again under its name: changes are captured the way that is wanted now, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import pytest

import millstream
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.capture import mode_switch
from millstream.catalog.attached import CaptureMode
from millstream.catalog.capture_state import WalLoss
from millstream.cli.main import main
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from kits.capture import Kit

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres


def attach(kit: Kit, url: str, cdc: str) -> None:
    """As another process would."""
    with millstream.connect(kit.root) as ms:
        ms.attach("Shop", url, cdc=cdc)


def refused(kit: Kit, url: str, cdc: str) -> MillstreamError:
    before = kit.database
    with pytest.raises(MillstreamError) as caught:
        attach(kit, url, cdc)
    assert kit.database == before
    return caught.value


def slots(writer: Writer) -> int:
    row = writer.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def test_back_to_triggers_and_to_the_wal_again(kit: Kit, writer: Writer, shop: WalShop) -> None:
    for cdc, mode in (("wal", CaptureMode.WAL), ("trigger", CaptureMode.TRIGGER), ("auto", CaptureMode.WAL)):
        attach(kit, shop.address.reference, cdc)
        assert kit.database.cdc == cdc
        with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
            late.execute("INSERT INTO b VALUES (50, 50)")
            writer.execute(BOTH)
            kit.tick()
            late.commit()
        until(kit, mode, writer, "a", "b")
        writer.execute("INSERT INTO b VALUES (7, 7)")
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        assert slots(writer) == (mode is CaptureMode.WAL)
    assert not any("compar" in sentence for sentence in kit.said)
    assert kit.warned == [], "it was wanted so"


def test_nobody_has_to_write_for_it_to_go_back(kit: Kit, writer: Writer, shop: WalShop) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    for _ in range(2):
        kit.tick()
    attach(kit, shop.address.reference, "trigger")
    for _ in range(3):
        kit.tick()
    assert kit.database.mode is CaptureMode.TRIGGER
    assert slots(writer) == 0


def test_a_move_that_is_no_longer_wanted(kit: Kit, writer: Writer, shop: WalShop) -> None:
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO c VALUES (5, 5)")  # a slot is not complete before it ends
        for _ in range(2):
            writer.execute(BOTH)
            kit.tick()
        assert kit.database.mode is CaptureMode.TRANSITIONING
        attach(kit, shop.address.reference, "trigger")
        kit.tick()
        assert (kit.database.mode, slots(writer)) == (CaptureMode.TRIGGER, 0)
        assert (kit.database.hindrance, kit.warned) == (None, [])
        kit.assert_exact(writer, "a", "b")


def test_what_is_wanted_anew_is_tried_at_once(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 3600.0)
    kit.read("rc", "c", "k", "v")  # no key, and not REPLICA IDENTITY FULL
    kit.tick()
    lost = WalLoss(datetime(2999, 1, 1, tzinfo=UTC), 3)
    kit.catalog.put_database(replace(kit.database, state=replace(kit.database.state, lost=lost)))
    writer.execute("ALTER TABLE c REPLICA IDENTITY FULL")
    writer.execute(BOTH)
    kit.tick()
    assert kit.database.mode is CaptureMode.TRIGGER
    attach(kit, shop.address.reference, "wal")
    assert kit.database.hindrance is None
    until(kit, CaptureMode.WAL, writer, "a", "b", "c")


def test_the_wal_is_refused_with_what_is_in_the_way(kit: Kit, writer: Writer, shop: WalShop) -> None:
    kit.read("rc", "c", "k", "v")
    kit.tick()
    error = refused(kit, shop.address.reference, "wal")
    assert error.code is Code.DATABASE_UNFIT
    assert "public.c" in error.message
    assert 'ALTER TABLE "public"."c" REPLICA IDENTITY FULL' in str(error.hint)
    with shop.server.superuser() as superuser:
        superuser.execute(f"ALTER ROLE {REPLICATOR} NOREPLICATION")
        try:
            assert refused(kit, shop.address.reference, "wal").code is Code.PRIVILEGE_MISSING
        finally:
            superuser.execute(f"ALTER ROLE {REPLICATOR} REPLICATION")


def test_another_address_of_the_same_database(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    monkeypatch.setenv("MS_TEST_URL", shop.address.reference)
    assert main(["attach", "shop", "env:MS_TEST_URL", "--lake", str(kit.root)]) == 0
    assert (kit.database.address, kit.database.cdc, kit.database.mode) == ("env:MS_TEST_URL", "auto", CaptureMode.WAL)
    writer.execute(BOTH)
    kit.tick()
    kit.assert_exact(writer, "a", "b")
