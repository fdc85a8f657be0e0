"""A table that is read from the WAL, and has become a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kits.swapped_names import code_of, evil_runs, make_evil
from kits.wal_tables import Writer, always_surveyed, kit, shop, until, writer
from millstream.catalog.attached import CaptureMode
from millstream.errors import Code

if TYPE_CHECKING:
    from kits.capture import Kit
    from kits.wal_shops import WalShop

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres


def test_it_is_left_behind_unread_and_the_others_go_on(shop: WalShop, kit: Kit, writer: Writer) -> None:
    make_evil(writer)
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute("ALTER TABLE a RENAME TO a_old")
    writer.execute("CREATE VIEW a AS SELECT evil() + k - 1 AS k, v, more FROM a_old")
    writer.execute("INSERT INTO b VALUES (9, 90)")
    assert code_of(lambda: kit.tick("a")) is Code.SOURCE_NO_CHANGE_FEED
    kit.tick("b")
    kit.assert_exact(writer, "b")
    assert evil_runs(shop) == []
    writer.execute("DROP VIEW a")
    writer.execute("ALTER TABLE a_old RENAME TO a")
    writer.execute("UPDATE a SET v = v + 1")
    kit.tick("a")
    kit.assert_exact(writer, "a", "b")
