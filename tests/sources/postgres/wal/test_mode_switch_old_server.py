"""The WAL of an older server: there and back by ticks, with what it does not know of newer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kits.wal_shops import WalShop, new_owned_wal_shop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, until, writer
from millstream.catalog.attached import CaptureMode
from millstream.testing.postgres_server import Server

if TYPE_CHECKING:
    from kits.capture import Kit

__all__ = ["always_surveyed", "kit", "writer"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(old_server: Server) -> WalShop:
    return new_owned_wal_shop(old_server)


def test_there_and_back(kit: Kit, writer: Writer, shop: WalShop) -> None:
    assert shop.server_version == 15
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE EXTENSION citext; CREATE EXTENSION hstore")
    writer.execute("CREATE TABLE tagged (k citext PRIMARY KEY, h hstore)")
    kit.read("rt", "tagged", "k", "h")
    until(kit, CaptureMode.WAL, writer, "a", "b", "tagged")
    for statement in (
        BOTH,
        "INSERT INTO tagged VALUES ('AbC', 'b=>1, a=>\"x y\"'), ('q', NULL)",
        "UPDATE tagged SET k = 'abc' WHERE k = 'ABC'",  # the same key, and another text
        "DELETE FROM tagged WHERE k = 'ABC'",
        "UPDATE a SET k = k + 100",
        "DELETE FROM b WHERE ctid = (SELECT min(ctid) FROM b)",
        "TRUNCATE b",
        "INSERT INTO b VALUES (1, 1)",
    ):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b", "tagged")
    assert kit.database.mode is CaptureMode.WAL
    writer.execute("CREATE TABLE doubled (k int PRIMARY KEY, twice int GENERATED ALWAYS AS (k * 2) STORED)")
    kit.read("rd", "doubled", "k", "twice")
    until(kit, CaptureMode.TRIGGER, writer, "a", "b", "doubled", statement="UPDATE doubled SET k = k + 1")
    assert "no generated columns" in str(kit.database.hindrance)
    writer.execute("INSERT INTO doubled VALUES (7)")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "tagged", "doubled")
    kit.assert_nothing_twice()
