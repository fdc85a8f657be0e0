"""What `DeltaStore` promises, run over both ways; every result is checked by plain Spark and by each way's reader."""

from __future__ import annotations

import pytest
from storage_kit import Lake, assert_agree, bag, change, difference, located, next_txn, rows, schema_of, summed

from millstream.engine.storage import DeltaStore

pytestmark = pytest.mark.spark

DDL = "k BIGINT, s STRING, v INT"


@pytest.fixture
def path(store: DeltaStore, lake: Lake) -> str:
    """A table of ours with three rows, two of them equal."""
    path = lake.path()
    store.create(path, schema_of(DDL), stats_columns=["k", "s"])
    store.append(path, rows(DDL, (1, "a", 10), (2, "b", 20), (2, "b", 20)), next_txn(), {})
    return path


def test_create_and_append(store: DeltaStore, lake: Lake, path: str) -> None:
    assert assert_agree(lake, path, 0) == {(1, "a", 10): 1, (2, "b", 20): 2}


def test_one_of_two_copies_goes(store: DeltaStore, lake: Lake, path: str) -> None:
    before = lake.contents()
    copies = located(store, path, "k = 2")
    change(store, path, copies.slice(0, 1), rows(DDL, (3, None, None)))
    after = assert_agree(lake, path, 1)
    assert after == {(1, "a", 10): 1, (2, "b", 20): 1, (3, None, None): 1}
    assert summed(store.changes(path, 1, 2).frame) == difference(before, after)


def test_replace(store: DeltaStore, lake: Lake, path: str) -> None:
    frame = lake.spark.createDataFrame(rows(DDL, (9, "z", 1)))
    commit = store.replace(path, frame, next_txn(), {"frontier": {"a": 1}})
    assert (commit.version, commit.rows_written) == (2, 1)
    assert assert_agree(lake, path, 1) == {(9, "z", 1): 1}
    assert bag(store.read(path, 1)) == {(1, "a", 10): 1, (2, "b", 20): 2}
