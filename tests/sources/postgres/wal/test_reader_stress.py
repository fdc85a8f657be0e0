"""No change is lost or doubled by the WAL, nor while a database goes from triggers to its WAL and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.mode_switch import SwitchingCapture
from kits.stress import TABLES, Stress, create_tables, run
from kits.wal_shops import WalShop, new_wal_shop
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def busy(server: Server) -> WalShop:
    """The tables of the stress, those without a key so that the WAL has their old rows."""
    shop = new_wal_shop(server)
    create_tables(shop, is_for_wal=True)
    return shop


@pytest.fixture
def capture(busy: WalShop) -> Iterator[SwitchingCapture]:
    made = SwitchingCapture(busy, TABLES, stay=4)
    yield made
    made.close()


def test_switching_all_the_time(busy: WalShop, capture: SwitchingCapture) -> None:
    drains = run(busy, capture, Stress(busy, seed=1), seconds=12)
    assert drains >= 2
    assert capture.switches >= 2, capture.mode
    assert capture.changes > 300
    assert capture.keyed >= 1


def test_staying_with_the_wal(busy: WalShop, capture: SwitchingCapture) -> None:
    capture.check_every = 20
    capture.start()
    while capture.mode != "WAL":
        capture.poll()
    capture.stay = None
    capture.start = lambda: None  # type: ignore[method-assign]
    drains = run(busy, capture, Stress(busy, seed=2), seconds=8)
    assert drains >= 2
    assert capture.mode == "WAL"
    assert capture.changes > 300


@pytest.mark.long
@pytest.mark.parametrize("stay", [0, 3, 25])
def test_a_hundred_thousand_changes(busy: WalShop, capture: SwitchingCapture, stay: int) -> None:
    capture.stay = stay
    run(busy, capture, Stress(busy, seed=100 + stay, writers=6), seconds=480, changes=100_000)
    assert capture.changes >= 100_000
