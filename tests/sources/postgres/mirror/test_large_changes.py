"""Mirrors whose changes are too many for the driver: Spark finds what goes, and what differs; both ways end alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from millstream import Code, MillstreamError, naming
from millstream.engine.storage import DeltaStore, RangeKind, Txn
from millstream.engine.storage.files.schema import arrow_schema
from millstream.settings import Settings
from millstream.sources.postgres.mirror.table import Mirror, land, resync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = StructType(
    [
        StructField("k", LongType()),
        StructField("s", StringType()),
        StructField("d", DoubleType()),
        StructField("a", ArrayType(DoubleType())),
    ]
)
Row = tuple[Any, ...]
PLUS, MINUS, NAN = (1, "x", 0.0, [0.0]), (1, "x", -0.0, [0.0]), (1, "x", float("nan"), [-0.0])
ROWS = [PLUS, PLUS, MINUS, NAN, (2, None, None, None), (3, "y", 1.5, [])]


def zset(rows: dict[Row, int] | list[tuple[Row, int]], schema: StructType = SCHEMA) -> pa.Table:
    pairs = list(rows.items()) if isinstance(rows, dict) else rows
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row, _ in pairs], schema=arrow_schema(schema)
    )
    return table.append_column(naming.WEIGHT, pa.array([w for _, w in pairs], pa.int64()))


def bag(rows: Any) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in rows)


@pytest.fixture
def store(spark: SparkSession) -> DeltaStore:
    return DeltaStore(spark, Settings())


@pytest.fixture(params=["by key", "by all columns"])
def mirror(request: pytest.FixtureRequest, store: DeltaStore, tmp_path: Path) -> Mirror:
    found = Mirror("shop.public.t", str(tmp_path / "t"), ("k",) if request.param == "by key" else ())
    store.create(found.path, SCHEMA, stats_columns=found.key)
    return found


def contents(store: DeltaStore, mirror: Mirror) -> Counter[str]:
    rows = store.rows(mirror.path, store.version(mirror.path), 1_000)
    assert rows is not None
    return bag(tuple(row.values()) for row in rows.to_pylist())


def test_landing_by_spark(store: DeltaStore, mirror: Mirror) -> None:
    before = [(1, "a", 0.0, [1.0, None]), (2, "b", -0.0, None), (3, None, None, [])]
    after = [(1, "a", -0.0, [1.0, None]), (4, "b", float("nan"), None), (3, None, None, [])]
    land(store, mirror, zset([(r, 1) for r in before]), Txn("t", 1), {}, 0)
    assert contents(store, mirror) == bag(before)
    change = [(r, -1) for r in before] + [(r, 1) for r in after]
    version = land(store, mirror, zset(change), Txn("t", 2), {"postgres": {}}, 0)
    assert contents(store, mirror) == bag(after)
    assert version is not None
    assert store.classify(mirror.path, version - 1, version).kind is RangeKind.MUTATING
    assert land(store, mirror, zset([(r, w) for r in after for w in (1, -1)]), Txn("t", 3), {}, 0) is None
    with pytest.raises(MillstreamError) as caught:
        land(store, mirror, zset([((9, "a", None, None), -1)]), Txn("t", 4), {}, 0)
    assert caught.value.code is Code.CAPTURE_LOST
    assert store.version(mirror.path) == version


def test_duplicates_and_bits_by_spark(store: DeltaStore, tmp_path: Path) -> None:
    mirror = Mirror("shop.public.t", str(tmp_path / "bag"))
    store.create(mirror.path, SCHEMA)
    land(store, mirror, zset([(r, 1) for r in ROWS] * 3), Txn("t", 1), {}, 0)
    land(store, mirror, zset([(PLUS, -4), (MINUS, -3), (NAN, 1), (ROWS[4], -1)]), Txn("t", 2), {}, 0)
    wanted = bag([PLUS] * 2 + [NAN] * 4 + [ROWS[4]] * 2 + [ROWS[5]] * 3)
    assert contents(store, mirror) == wanted
    with pytest.raises(MillstreamError) as caught:
        land(store, mirror, zset([(PLUS, -3)]), Txn("t", 3), {}, 0)
    assert caught.value.code is Code.CAPTURE_LOST


def test_resync_by_spark_commits_no_more_than_differs(spark: SparkSession, store: DeltaStore, tmp_path: Path) -> None:
    mirror = Mirror("shop.public.t", str(tmp_path / "bag"))
    store.create(mirror.path, SCHEMA)
    table = spark.createDataFrame(zset([(r, 1) for r in ROWS]).drop_columns([naming.WEIGHT]), schema=SCHEMA)
    assert resync(store, mirror, table, Txn("t", 1), {}, 1_000) == 1
    assert resync(store, mirror, table, Txn("t", 2), {}, 1_000) is None
    other = [PLUS, MINUS, MINUS, *ROWS[3:5], (3, "y", 1.5, [None])]
    frame = spark.createDataFrame(zset([(r, 1) for r in other]).drop_columns([naming.WEIGHT]), schema=SCHEMA)
    version = resync(store, mirror, frame, Txn("t", 3), {}, 1_000)
    assert contents(store, mirror) == bag(other)
    assert version == 2
    assert store.classify(mirror.path, 1, 2).feed_rows == 4


def test_more_columns_are_no_change_to_who_reads_the_old_ones(
    spark: SparkSession, store: DeltaStore, tmp_path: Path
) -> None:
    narrow, wide = StructType(SCHEMA.fields[:2]), SCHEMA
    for number, as_frame in enumerate((False, True)):
        path = str(tmp_path / f"t{number}")
        mirror = Mirror("shop.public.t", path, ("k",))
        store.create(path, narrow, stats_columns=["k"])
        land(store, mirror, zset([((1, "a"), 1), ((2, "b"), 1)], narrow), Txn("t", 1), {}, 100)
        rows = zset([((1, "a", 0.5, None), 1), ((2, "b", None, [1.0]), 1)]).drop_columns([naming.WEIGHT])
        given = spark.createDataFrame(rows, schema=wide) if as_frame else rows
        made = store.widen(path, wide, given, Txn("t-wider", 2), {"columns": []})
        assert store.classify(path, 1, made.version, ["k", "s"]).kind is RangeKind.NOTHING
        assert store.classify(path, 1, made.version, ["k", "d"]).kind is RangeKind.SCHEMA_CHANGED
        land(store, mirror, zset([((1, "a", 0.5, None), -1), ((1, "c", None, None), 1)]), Txn("t", 3), {}, 100)
        changes = store.changes(path, 1, made.version + 1, ["k", "s"]).frame
        assert Counter(map(tuple, changes.collect())) == Counter([(1, "a", -1), (1, "c", 1)])
        read = spark.read.format("delta").load(path)
        assert bag(read.collect()) == bag([(1, "c", None, None), (2, "b", None, [1.0])])
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(path)
        assert feed.count() == 4, "Delta's own reader finds two rows inserted and one updated"
