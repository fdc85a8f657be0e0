"""The statements whose price is measured, on real servers."""

from __future__ import annotations

import os
import time

import pytest

from millstream.bench.postgres.backend_time import cpu_seconds
from millstream.bench.postgres.overhead import Way, measure
from millstream.bench.postgres.shop import SETTINGS, new_shop
from millstream.testing.postgres_server import LOGICAL, Server

pytestmark = pytest.mark.postgres


def test_every_way_is_measured_in_every_round() -> None:
    said: list[str] = []
    with Server({**SETTINGS, **LOGICAL}) as server, Server(SETTINGS) as other:
        shop = new_shop(server)
        samples = measure(shop, new_shop(other), bulk_rows=50, single_rows=3, rounds=2, announce=said.append)
        with server.superuser(shop.name) as superuser:
            assert superuser.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
    assert len(samples) == len(Way) * 6 * 2
    assert all(s.wall_us > 0 for s in samples)
    assert {s.round for s in samples} == {1, 2}
    assert len(said) == 3


def test_cpu_is_that_of_the_process() -> None:
    before = cpu_seconds(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.03 < cpu_seconds(os.getpid()) - before < 1.0
    asleep = cpu_seconds(os.getpid())
    time.sleep(0.05)
    assert cpu_seconds(os.getpid()) - asleep < 0.03
