"""The snapshot of a tick by triggers, held: it shows what the mirrors hold, no matter what is written meanwhile."""

from __future__ import annotations

import pytest

from kits.capture import Kit
from kits.held_snapshots import assert_held, writing
from kits.shops import OWNER, Shop
from kits.tick_tables import Owner, both, kit, owner

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres
TICKS = 25


def test_under_load(both: Kit, shop: Shop) -> None:
    statements = (
        "INSERT INTO t VALUES ((random() * 2e9)::int, 'x', 1, '') ON CONFLICT DO NOTHING",
        "UPDATE bag SET d = random() * 9",
        "DELETE FROM t WHERE id = (SELECT min(id) FROM t)",
    )
    with writing(shop.server.url(shop.name, OWNER), *statements) as written:
        before = written()
        for _ in range(TICKS):
            assert_held(both, shop, "t", "bag")
        assert written() > before + TICKS, "it was written all the time"


def test_when_nothing_was_written(both: Kit, shop: Shop) -> None:
    both.tick()
    for _ in range(3):
        assert_held(both, shop, "t", "bag")


def test_a_table_that_is_compared(both: Kit, shop: Shop, owner: Owner) -> None:
    owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
    owner.execute("UPDATE t SET n = n + 1")
    owner.execute("ALTER TABLE t ENABLE TRIGGER USER")
    assert_held(both, shop, "t", "bag")
