"""A random life of a table through Spark, by both ways, against a model in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kits.storage import (
    KSD,
    Bag,
    Lake,
    assert_readable,
    bag,
    bag_of_arrow,
    change,
    direct,
    rows,
    summed,
    without_places,
)
from millstream.engine.storage import DeltaStore
from millstream.engine.storage.write import fold

pytestmark = pytest.mark.spark


def random_row(rng: random.Random) -> tuple[Any, ...]:
    return rng.choice([None, *range(6)]), rng.choice([None, "a", "b"]), rng.choice([None, Decimal("0.5"), Decimal(7)])


@pytest.mark.parametrize(("way", "steps"), [("scan", 40), ("spark", 5)], indirect=["way"], ids=["scan", "spark"])
def test_bag_of_rows(store: DeltaStore, lake: Lake, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SMALL_ROWS", 60)
    monkeypatch.setattr(fold, "MAX_SMALL_FILES", 3)
    rng = random.Random(5)
    path = lake.path()
    store.create(path, KSD, stats_columns=["k", "s"])
    models: list[Bag] = [Counter()]
    for _ in range(steps):
        now = store.read_located(path, store.version(path)).toArrow()
        assert bag_of_arrow(without_places(now)) == models[-1]
        wanted = min(now.num_rows, rng.choice([1, 3, 3, now.num_rows // 2]))
        removed = now.take(pa.array(rng.sample(range(now.num_rows), wanted), pa.int64()))
        added = rows(*(random_row(rng) for _ in range(rng.choice([1, 2, 5, 25]))))
        change(store, path, removed, added)
        models.append(models[-1] - bag_of_arrow(without_places(removed)) + bag_of_arrow(added))
    assert assert_readable(lake, direct(lake.spark), path, after=0) == models[-1]
    for version in rng.sample(range(1, steps), 2):
        assert lake.contents(version=version) == bag(store.read(path, version)) == models[version]
        total = Counter(models[version])
        total.update(summed(store.changes(path, version, steps).frame))
        assert +total == models[-1]
        assert summed(store.changes(path, version, steps).frame) == lake.net_feed(version, steps)
