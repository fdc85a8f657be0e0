"""Reading tables that are not ours, with everything Delta allows, through both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kits.storage import Lake, bag, summed
from millstream.engine.storage import DeltaStore

pytestmark = pytest.mark.spark

FEED = "'delta.enableChangeDataFeed' = 'true'"
NO_VECTORS = "'delta.enableDeletionVectors' = 'false'"
TABLES = {
    "plain": f"TBLPROPERTIES ({FEED}, {NO_VECTORS})",
    "deletion vectors": f"TBLPROPERTIES ({FEED}, 'delta.enableDeletionVectors' = 'true')",
    "column mapping": f"TBLPROPERTIES ({FEED}, 'delta.columnMapping.mode' = 'name')",
    "partitions": f"PARTITIONED BY (p) TBLPROPERTIES ({FEED})",
    "v2 checkpoints": f"TBLPROPERTIES ({FEED}, 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2')",
}


@pytest.fixture(params=TABLES)
def path(request: pytest.FixtureRequest, lake: Lake) -> str:
    lake.sql("CREATE TABLE {t} (k BIGINT, s STRING, ts TIMESTAMP, p STRING) USING delta " + TABLES[request.param])
    lake.sql(
        "INSERT INTO {t} SELECT IF(id % 7 = 0, NULL, id % 5), concat('s', id % 3),"
        " timestamp'2024-01-01 10:00:00' + make_interval(0,0,0,id), IF(id % 4 = 0, NULL, concat('a b/', id % 2))"
        " FROM range(40)"
    )
    return lake.path()


def test_a_life(both: Sequence[DeltaStore], lake: Lake, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for statement in (
        "UPDATE {t} SET s = 'changed' WHERE k = 1",
        "DELETE FROM {t} WHERE k IS NULL AND s = 's0'",
        "INSERT OVERWRITE {t} SELECT * FROM {t} WHERE s <> 'changed'",
        "DELETE FROM {t} WHERE k = 2",
    ):
        lake.sql(statement)
    plain = {version: lake.contents(version=version) for version in (1, 3, 5)}
    feeds = {after: lake.net_feed(after, 5) for after in (1, 3)}
    for store in both:
        assert store.version(path) == 5
        assert store.snapshot(path).num_rows == plain[5].total()
        for version, expected in plain.items():
            assert bag(store.read(path, version)) == expected
        assert bag(store.read(path, 5, ["s", "K"])) == _projected(plain[5], 1, 0)
        for after, expected_feed in feeds.items():
            assert summed(store.changes(path, after, 5).frame) == expected_feed
        assert summed(store.changes(path, 1, 5, ["S"]).frame) == _projected(feeds[1], 1)
    monkeypatch.setattr("millstream.engine.storage.read.driver_scan.MAX_ROWS", -1)
    for version, expected in plain.items():
        assert bag(both[0].read(path, version)) == expected


def _projected(zset: Mapping[tuple[Any, ...], int], *columns: int) -> dict[tuple[Any, ...], int]:
    total: Counter[tuple[Any, ...]] = Counter()
    for row, weight in zset.items():
        total[tuple(row[c] for c in columns)] += weight
    return {row: weight for row, weight in total.items() if weight}


def test_an_added_column(both: Sequence[DeltaStore], lake: Lake) -> None:
    lake.sql(f"CREATE TABLE {{t}} (k BIGINT) USING delta {TABLES['plain']}")
    lake.sql("INSERT INTO {t} VALUES (1)")
    lake.sql("ALTER TABLE {t} ADD COLUMN v STRING")
    lake.sql("INSERT INTO {t} VALUES (2, 'new')")
    path = lake.path()
    for store in both:
        assert bag(store.read(path, 3)) == {(1, None): 1, (2, "new"): 1}
        assert bag(store.read(path, 1)) == {(1,): 1}
        assert summed(store.changes(path, 0, 3, ["k"]).frame) == {(1,): 1, (2,): 1}
