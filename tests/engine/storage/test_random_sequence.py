"""A long random life of a table against a model in plain Python: vectors upon vectors, folding, checkpoints."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from storage_kit import Bag, Lake, assert_agree, bag, bag_of_arrow, change, rows, schema_of, summed

from millstream import naming
from millstream.engine.storage import DeltaStore

pytestmark = pytest.mark.spark

DDL = "k BIGINT, s STRING, d DECIMAL(20,3)"


def random_row(rng: random.Random) -> tuple[Any, ...]:
    return (
        rng.choice([None, *range(6)]),
        rng.choice([None, "a", "b"]),
        rng.choice([None, Decimal("0.5"), Decimal("1.25")]),
    )


@pytest.mark.parametrize(("way", "steps"), [("auto", 60), ("never", 6)], ids=["auto", "never"], indirect=["way"])
@pytest.mark.parametrize("seed", [1])
def test_bag_of_rows(store: DeltaStore, lake: Lake, steps: int, seed: int) -> None:
    rng = random.Random(seed)
    path = lake.path()
    store.create(path, schema_of(DDL), stats_columns=["k", "s"])
    model: Bag = Counter()
    models = [model]
    for _ in range(steps):
        stored = store.read_located(path, store.version(path)).toArrow()
        assert bag_without_positions(stored) == model
        picked = rng.sample(range(stored.num_rows), min(stored.num_rows, rng.choice([0, 1, 3, stored.num_rows])))
        added = rows(DDL, *(random_row(rng) for _ in range(rng.choice([0, 2, 5, 9]))))
        removed = stored.take(pa.array(picked, pa.int64()))
        commit = change(store, path, removed, added)
        assert (commit is None) == (removed.num_rows + added.num_rows == 0)
        if commit is None:
            continue
        model = model - bag_without_positions(removed) + bag_of_arrow(added)
        models.append(model)
        assert commit.version == len(models) - 1
    assert assert_agree(lake, path, 0) == model
    for version in rng.sample(range(len(models)), 3):
        assert lake.contents(version=version) == models[version]
        assert bag(store.read(path, version)) == models[version]
        whole = Counter(models[version])
        whole.update(summed(store.changes(path, version, len(models) - 1).frame))
        assert +whole == model


def bag_without_positions(table: pa.Table) -> Bag:
    return bag_of_arrow(table.drop_columns([naming.FILE, naming.ROW]))
