"""The health of slots and captured tables, and their alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kits.mode_switch import TRANSITIONING, TRIGGER, WAL, SwitchingCapture
from kits.wal_shops import WalShop, new_wal_shop
from millstream.sources.postgres.server.health import (
    LAG_EXCEEDED,
    SLOT_LOST,
    SLOT_MISSING,
    SOURCE_MISSING,
    WAL_AT_RISK,
    check_cdc_health,
    slot_alert,
    slot_health,
)
from millstream.sources.postgres.wal.eligibility import WalTable
from millstream.sources.postgres.wal.slot import SlotState, drop_slot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

MUCH = 100 << 20


@pytest.fixture
def shop(server: Server) -> WalShop:
    shop = new_wal_shop(server)
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
        owner.execute("CREATE TABLE k (a int); ALTER TABLE k REPLICA IDENTITY FULL")
    return shop


Follow = Callable[..., SwitchingCapture]


@pytest.fixture
def follow(shop: WalShop) -> Iterator[Follow]:
    """Begin to follow tables by their triggers; each poll compares with the tables."""
    begun: list[SwitchingCapture] = []

    def start(*names: str) -> SwitchingCapture:
        begun.append(SwitchingCapture(shop, names or ("t", "k"), check_every=1))
        begun[-1].start()
        return begun[-1]

    yield start
    for capture in begun:
        capture.close()


def run(shop: WalShop, *statements: str) -> None:
    with shop.owner() as owner:
        for statement in statements:
            owner.execute(statement.encode())


def move(capture: SwitchingCapture, mode: str, most: int = 20) -> None:
    """Poll until another mode is reached."""
    capture.stay = 0
    while capture.mode != mode:
        assert most > 0, capture.mode
        most -= 1
        capture.poll()
    capture.stay = None


TABLE = WalTable("t", 1, "public.t", (), (), True, {})


def test_health_of_slots_and_tables(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    own = capture.own
    sources = [(c.relation.oid, c.relation.qualified) for c in capture.captured.values()]
    assert slot_health(own, shop.slot, TRIGGER, sources) == []
    rows = check_cdc_health(own, "shop", shop.slot, TRIGGER, sources, MUCH)
    assert [(r.source_table, r.cdc_mode, r.slot_name, r.lag_bytes, r.alert) for r in rows] == [
        ("public.t", TRIGGER, None, None, None),
        ("public.k", TRIGGER, None, None, None),
    ]
    move(capture, WAL)
    run(shop, "INSERT INTO t SELECT i, 0 FROM generate_series(100, 900) i", "ALTER TABLE t RENAME TO renamed")
    (slot,) = slot_health(own, shop.slot, WAL, sources)
    assert (slot.slot_name, slot.sources) == (shop.slot.name, ("public.t", "public.k"))
    assert slot.source_relids == tuple(oid for oid, _ in sources)
    assert slot.wal_status == "reserved"
    assert (slot.retained_wal_bytes or 0) > 10_000
    first, second = check_cdc_health(own, "shop", shop.slot, WAL, [sources[0], (1, "public.gone")], 1000)
    assert (first.source_table, first.alert, first.slot_name) == ("public.renamed", LAG_EXCEEDED, shop.slot.name)
    assert (first.lag_bytes or 0) > 10_000
    assert first.confirmed_lsn == slot.confirmed_lsn
    assert (second.source_table, second.alert) == ("public.gone", SOURCE_MISSING)
    assert check_cdc_health(own, "shop", shop.slot, WAL, sources, MUCH)[0].alert is None
    drop_slot(own, shop.slot.name)
    assert {r.alert for r in check_cdc_health(own, "shop", shop.slot, WAL, sources, MUCH)} == {SLOT_MISSING}
    assert slot_health(own, shop.slot, WAL, sources)[0].wal_status == "missing"


@pytest.mark.parametrize(
    ("status", "safe", "alert"),
    [("reserved", None, None), ("extended", 5, None), ("extended", -1, WAL_AT_RISK), ("unreserved", None, WAL_AT_RISK),
     ("lost", None, SLOT_LOST)],
)  # fmt: skip
def test_alerts(status: str, safe: int | None, alert: str | None) -> None:
    state = SlotState("pgoutput", "d", False, 1, 1, 5, 5, status, safe, None, None)
    assert slot_alert(state, WAL, 10) == alert
    assert slot_alert(state, TRIGGER, 10) is None
    assert slot_alert(None, TRANSITIONING, 10) is None
