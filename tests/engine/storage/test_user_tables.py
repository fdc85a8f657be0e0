"""Reading tables that are not ours, with everything Delta allows, through both ways."""

from __future__ import annotations

import pytest
from storage_kit import Lake, assert_readable, bag, summed

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


@pytest.mark.parametrize("way", ["direct", "scan", "spark"], indirect=True)
def test_a_life(request: pytest.FixtureRequest, lake: Lake, path: str) -> None:
    if request.node.callspec.params["way"] == "scan":
        request.getfixturevalue("_scanned")
    store: DeltaStore = request.getfixturevalue("store")
    lake.sql("UPDATE {t} SET s = 'changed' WHERE k = 1")
    lake.sql("DELETE FROM {t} WHERE k IS NULL AND s = 's0'")
    assert_readable(lake, store, path, after=1)
    lake.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE s <> 'changed'")
    lake.sql("DELETE FROM {t} WHERE k = 2")
    expected = assert_readable(lake, store, path, after=2)
    version = store.version(path)
    assert bag(store.read(path, version, ["s", "k"])) == bag(
        lake.spark.read.format("delta").load(path).select("s", "k")
    )
    assert bag(store.read(path, 1)) == lake.contents(version=1)
    assert summed(store.changes(path, 1, version, ["K"]).frame) == _projected(
        summed(store.changes(path, 1, version).frame)
    )
    assert expected == lake.contents()


def _projected(zset: dict[tuple[object, ...], int]) -> dict[tuple[object, ...], int]:
    total: dict[tuple[object, ...], int] = {}
    for row, weight in zset.items():
        total[row[:1]] = total.get(row[:1], 0) + weight
    return {row: weight for row, weight in total.items() if weight}


@pytest.mark.parametrize("way", ["direct", "spark"], indirect=True)
def test_an_added_column(store: DeltaStore, lake: Lake) -> None:
    lake.sql(f"CREATE TABLE {{t}} (k BIGINT) USING delta {TABLES['plain']}")
    lake.sql("INSERT INTO {t} VALUES (1)")
    lake.sql("ALTER TABLE {t} ADD COLUMN v STRING")
    lake.sql("INSERT INTO {t} VALUES (2, 'new')")
    path = lake.path()
    assert bag(store.read(path, 3)) == {(1, None): 1, (2, "new"): 1}
    assert bag(store.read(path, 1)) == {(1,): 1}
    assert summed(store.changes(path, 0, 3, ["k"]).frame) == {(1,): 1, (2,): 1}
