"""Windows lose and double nothing under load, are trimmed to what was read, and cost nothing when nothing happened."""

from __future__ import annotations

import time

import pytest
from captures import TriggerCapture
from shops import Shop
from stress import TABLES, Stress, create_tables, run

pytestmark = pytest.mark.postgres


def test_no_change_is_lost_or_doubled(shop: Shop) -> None:
    create_tables(shop)
    capture = TriggerCapture(shop, TABLES, check_every=3)
    stress = Stress(shop, seed=time.time_ns() % 1_000_000)
    drains = run(shop, capture, stress, seconds=8)
    capture.close()
    assert drains >= 3
    assert capture.changes > 500
    assert capture.truncations > 0
    assert min(stress.ends[end] for end in ("COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED")) > 0


@pytest.mark.long
def test_no_change_is_lost_or_doubled_of_a_hundred_thousand(shop: Shop) -> None:
    create_tables(shop)
    capture = TriggerCapture(shop, TABLES, check_every=3)
    stress = Stress(shop, seed=time.time_ns() % 1_000_000, writers=6)
    run(shop, capture, stress, changes=100_000, drain_seconds=2)
    capture.close()
    assert capture.changes >= 100_000
