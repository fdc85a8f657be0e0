"""The snapshot of a tick by the WAL, held: it shows what the mirrors hold, no matter what is written meanwhile."""

from __future__ import annotations

import pytest

from kits.capture import Kit
from kits.held_snapshots import assert_held, writing
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.catalog.attached import CaptureMode

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres
TICKS = 25


def test_under_load(kit: Kit, shop: WalShop, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    statements = (
        "UPDATE a SET v = v + 1 WHERE k = 1",
        "UPDATE b SET v = v + 1 WHERE k = 2",
        "DELETE FROM b WHERE k = 7",
        "INSERT INTO b VALUES (7, 7)",
    )
    with writing(shop.server.url(shop.name, REPLICATOR), *statements) as written:
        before = written()
        for _ in range(TICKS):
            assert_held(kit, shop, "a", "b")
        assert written() > before + TICKS
    assert kit.database.mode is CaptureMode.WAL


def test_while_capture_moves_to_the_wal(kit: Kit, shop: WalShop, writer: Writer) -> None:
    modes = set()
    for _ in range(40):
        writer.execute(BOTH)
        assert_held(kit, shop, "a", "b")
        modes.add(kit.database.mode)
        if kit.database.mode is CaptureMode.WAL:
            break
    assert CaptureMode.WAL in modes
    assert len(modes) > 1
