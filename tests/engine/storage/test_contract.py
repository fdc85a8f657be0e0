"""What `DeltaStore` promises to do to a table of ours, run over both ways and read back by plain Spark."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from kits.storage import (
    KSD,
    Lake,
    assert_readable,
    bag,
    bag_of_arrow,
    change,
    difference,
    direct,
    found,
    next_txn,
    rows,
    summed,
)
from millstream import naming
from millstream.engine.storage import CHANGE, INSERT, POSTIMAGE, PREIMAGE, ChangeSet, DeltaStore, RangeKind, Txn
from millstream.errors import Code, MillstreamError
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = rows((1, "a", Decimal(10)), (2, "b", None), (2, "b", None), (2, "b", None), (None, None, None))


@pytest.fixture
def path(store: DeltaStore, lake: Lake) -> str:
    """A table of ours; one row is there three times."""
    path = lake.path()
    store.create(path, KSD, stats_columns=["k", "s"])
    store.append(path, ROWS, next_txn(), {})
    return path


def test_create(store: DeltaStore, lake: Lake, path: str) -> None:
    snapshot = store.snapshot(path)
    assert snapshot.schema == (("k", "bigint", True), ("s", "string", True), ("d", "decimal(20,3)", True))
    assert snapshot.has_change_feed
    assert snapshot.writer_features >= {"changeDataFeed", "deletionVectors"}
    assert snapshot.configuration["delta.dataSkippingStatsColumns"] == "k,s"
    assert (snapshot.num_rows, snapshot.partition_columns) == (5, ())
    detail = lake.spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
    assert detail["id"] == snapshot.table_id
    assert (detail["numFiles"], detail["sizeInBytes"]) == (snapshot.num_files, snapshot.size_bytes)
    assert detail["properties"] == dict(snapshot.configuration)
    with pytest.raises(MillstreamError) as caught:
        store.create(path, KSD)
    assert caught.value.code is Code.NAME_TAKEN


def test_one_of_three_copies_goes(store: DeltaStore, lake: Lake, path: str) -> None:
    before = lake.contents()
    removed = pa.concat_tables([found(store, path, "k = 2").slice(0, 1), found(store, path, "k IS NULL")])
    change(store, path, removed, rows((3, None, Decimal("0.001"))))
    after = assert_readable(lake, direct(lake.spark), path, after=1)
    assert after == {(1, "a", Decimal(10)): 1, (2, "b", None): 2, (3, None, Decimal("0.001")): 1}
    assert summed(store.changes(path, 1, 2).frame) == difference(before, after)
    summary = store.classify(path, 1, 2)
    assert (summary.kind, summary.exact) == (RangeKind.MUTATING, True)


def test_keyed_changes(store: DeltaStore, lake: Lake) -> None:
    """Update, delete and insert by key, one key being NULL; the feed knows an update when it sees one."""
    path = lake.path()
    store.create(path, KSD, stats_columns=["k"])
    store.append(path, rows((1, "a", None), (2, "b", None), (None, "n", None)), next_txn(), {})
    removed = found(store, path, "k = 1 OR k IS NULL OR k = 2")
    labels = ["delete" if k == 2 else PREIMAGE for k in removed.column("k").to_pylist()]
    removed = removed.append_column(CHANGE, pa.array(labels))
    added = rows((1, "A", None), (None, "N", None), (3, "c", None))
    added = added.append_column(CHANGE, pa.array([POSTIMAGE, POSTIMAGE, INSERT]))
    commit = change(store, path, removed, added, key=["k"], metadata={"frontier": {"orders": 3}})
    assert commit is not None
    assert (commit.rows_written, commit.rows_removed) == (3, 3)
    assert assert_readable(lake, direct(lake.spark), path, after=1) == bag(
        lake.spark.createDataFrame(added.drop_columns([CHANGE]))
    )
    feed = [(r["_change_type"], r["s"]) for r in lake.feed(1, 2).collect()]
    assert sorted(feed) == [
        ("delete", "b"),
        ("insert", "c"),
        ("update_postimage", "A"),
        ("update_postimage", "N"),
        ("update_preimage", "a"),
        ("update_preimage", "n"),
    ]
    summary = store.classify(path, 1, 2)
    assert (summary.kind, summary.changed_rows, summary.feed_rows) == (RangeKind.MUTATING, 4, 6)
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    assert history["userMetadata"] == '{"frontier":{"orders":3}}'
    metrics = history["operationMetrics"]
    assert [metrics[f"numTargetRows{kind}"] for kind in ("Inserted", "Updated", "Deleted")] == ["1", "2", "1"]


@pytest.mark.parametrize("key", [("k",), ()], ids=["keyed", "bag"])
def test_delete_insert_updates_no_row(spark: Any, way: str, lake: Lake, key: Sequence[str]) -> None:
    """`delete_insert` removes all affected rows and inserts their new versions, on both paths, in one commit."""
    direct_way = "never" if way == "spark" else "auto"
    store, path = DeltaStore(spark, Settings(direct_way=direct_way, merge_strategy="delete_insert")), lake.path()
    store.create(path, KSD, stats_columns=["k"])
    store.append(path, rows((1, "a", None), (2, "b", None), (None, "n", None)), next_txn(), {})
    removed = found(store, path, "k = 1 OR k IS NULL")
    removed = removed.append_column(CHANGE, pa.array([PREIMAGE, PREIMAGE]))
    added = rows((1, "A", None), (None, "N", None)).append_column(CHANGE, pa.array([POSTIMAGE, POSTIMAGE]))
    commit = change(store, path, removed, added, key=key)
    assert commit is not None
    assert (commit.version, commit.rows_written, commit.rows_removed) == (2, 2, 2)
    after = assert_readable(lake, direct(spark), path, after=1)
    assert after == {(1, "A", None): 1, (2, "b", None): 1, (None, "N", None): 1}
    feed = [(r["_change_type"], r["s"]) for r in lake.feed(1, 2).collect()]
    assert sorted(feed) == [("delete", "a"), ("delete", "n"), ("insert", "A"), ("insert", "N")]
    metrics = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]["operationMetrics"]
    assert [metrics[f"numTargetRows{kind}"] for kind in ("Inserted", "Updated", "Deleted")] == ["2", "0", "2"]


@pytest.mark.parametrize("limit", [0, 50_000], ids=["written by spark", "written by us"])
def test_changes_spark_has_yet_to_compute(spark: Any, way: str, lake: Lake, limit: int) -> None:
    store = DeltaStore(spark, Settings(direct_way="never" if way == "spark" else "auto", direct_max_rows=limit))
    path = lake.path()
    store.create(path, KSD, stats_columns=["k"])
    store.append(path, spark.range(100).selectExpr("id k", "'x' s", "CAST(1 AS DECIMAL(20,3)) d"), next_txn(), {})
    removed = store.read_located(path, 1).where("k % 10 = 0").selectExpr("*", f"'update_preimage' AS {CHANGE}")
    added = spark.range(0, 100, 10).selectExpr(
        "id k", "'y' s", "CAST(2 AS DECIMAL(20,3)) d", f"'update_postimage' AS {CHANGE}"
    )
    commit = change(store, path, removed, added, key=["k"])
    assert commit is not None
    assert (commit.version, commit.rows_written, commit.rows_removed) == (2, 10, 10)
    after = assert_readable(lake, direct(spark), path, after=0)
    assert after == {(k, "xy"[k % 10 == 0], Decimal(1 + (k % 10 == 0))): 1 for k in range(100)}
    labels = lake.feed(1, 2).groupBy("_change_type").count().collect()
    assert {tuple(r) for r in labels} == {("update_preimage", 10), ("update_postimage", 10)}
    assert store.classify(path, 1, 2).changed_rows == 10
    if way == "direct":
        assert pa.table(DeltaTable(path).load_cdf(starting_version=2, ending_version=2)).num_rows == 20


def test_replace(store: DeltaStore, lake: Lake, path: str) -> None:
    frame = lake.spark.createDataFrame(rows((9, "z", None)))
    commit = store.replace(path, frame, next_txn(), {})
    assert (commit.version, commit.rows_written) == (2, 1)
    assert assert_readable(lake, direct(lake.spark), path, after=1) == {(9, "z", None): 1}
    assert store.classify(path, 1, 2).kind is RangeKind.REPLACED
    assert bag(store.read(path, 1)) == bag_of_arrow(ROWS)
    store.replace(path, frame.where("false"), next_txn(), {})
    assert assert_readable(lake, direct(lake.spark), path, after=1) == {}
    change(store, path, None, rows((5, "again", None)))
    assert lake.contents() == {(5, "again", None): 1}


def test_exactly_once(store: DeltaStore, lake: Lake, path: str) -> None:
    frame = lake.spark.createDataFrame(rows((9, "z", None)))
    txn = Txn("refresh", 7)
    assert store.transaction_version(path, "refresh") is None
    first = store.replace(path, frame, txn, {"n": 1})
    assert not first.repeated
    assert store.transaction_version(path, "refresh") == 7
    for other in (direct(lake.spark), store):
        for again in (
            other.replace(path, frame, txn, {}),
            other.append(path, rows((1, "x", None)), txn, {}),
            change(other, path, found(other, path, "true"), None, txn=txn),
        ):
            assert again is not None
            assert (again.version, again.repeated) == (first.version, True)
    assert store.version(path) == first.version
    assert lake.contents() == {(9, "z", None): 1}
    assert store.committed(path, txn) == (first.version, {"n": 1})


def test_nothing_to_do_makes_no_commit(store: DeltaStore, path: str) -> None:
    assert change(store, path, None, rows()) is None
    assert store.version(path) == 1


def test_conflicts(store: DeltaStore, lake: Lake, path: str) -> None:
    seen = found(store, path, "k = 1")
    lake.sql("INSERT INTO {t} VALUES (7, 'other', NULL)")
    with pytest.raises(MillstreamError) as caught:
        store.apply(path, ChangeSet(seen, None, expected_version=1), next_txn(), {})
    assert caught.value.code is Code.COMMIT_CONFLICT
    assert store.version(path) == 2


def test_racing_writers(store: DeltaStore, lake: Lake, path: str) -> None:
    old, outcomes = found(store, path, "k = 1"), []

    def run(n: int) -> None:
        try:
            outcomes.append(store.apply(path, ChangeSet(old, rows((n, "won", None)), 1), Txn(f"app{n}", 1), {}))
        except MillstreamError as e:
            outcomes.append(e.code)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(Code.COMMIT_CONFLICT) == 1
    assert lake.spark.read.format("delta").load(path).where("s = 'won'").count() == 1


EVERY_TYPE = """
    t BOOLEAN, b TINYINT, h SMALLINT, i INT, l BIGINT, f FLOAT, g DOUBLE, s STRING, x BINARY, d DATE,
    ts TIMESTAMP, tn TIMESTAMP_NTZ, d1 DECIMAL(5,2), d2 DECIMAL(18,4), d3 DECIMAL(38,10),
    a ARRAY<INT>, r STRUCT<p: STRING, q: ARRAY<DECIMAL(20,1)>>
"""
UTC = dt.UTC
VALUES = [
    (True, -128, 32767, -1, 2**63 - 1, 0.1, float("nan"), "zwölf\n'", b"\x00\xff", dt.date(1500, 3, 1),
     dt.datetime(1901, 1, 1, 12, 30, 0, 1, UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), Decimal("-999.99"),
     Decimal("12345678901234.5678"), Decimal("9999999999999999999999999999.9999999999"), [1, None],
     {"p": None, "q": [Decimal("1.5"), None]}),
    (None,) * 17,
    (False, 127, -32768, 0, -(2**63), -0.0, float("inf"), "", b"", dt.date(9999, 12, 31),
     dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(1, 1, 1), Decimal("0.01"), Decimal(0),
     Decimal("-1e-10"), [], {"p": "", "q": None}),
]  # fmt: skip


@pytest.mark.parametrize("extra", ["", ", m MAP<STRING, BIGINT>"], ids=["comparable", "map"])
def test_every_type(store: DeltaStore, lake: Lake, extra: str) -> None:
    schema = StructType.fromDDL(EVERY_TYPE + extra)
    values = [(*v, *([[("k", 1), ("z", None)]] if extra and v[0] else [None] * bool(extra))) for v in VALUES]
    path = lake.path()
    store.create(path, schema, stats_columns=schema.names)
    store.append(path, rows(*values, *values, schema=schema), next_txn(), {})
    assert assert_readable(lake, direct(lake.spark), path, after=0).total() == 6
    removed = store.read_located(path, 1).where("l IS NULL OR l > 0").toArrow()
    change(store, path, removed.slice(0, 3), rows(values[0], schema=schema))
    after = assert_readable(lake, direct(lake.spark), path, after=0)
    assert after.total() == 4
    assert summed(store.changes(path, 0, 2).frame) == dict(after)


def test_switching_the_change_feed_on(store: DeltaStore, lake: Lake) -> None:
    lake.sql("CREATE TABLE {t} (k BIGINT) USING delta")
    lake.sql("INSERT INTO {t} VALUES (1)")
    path = lake.path()
    assert store.enable_change_data_feed(path) == 2
    lake.sql("INSERT INTO {t} VALUES (2)")
    assert store.enable_change_data_feed(path) == 3
    assert store.classify(path, 0, 3).kind is RangeKind.LOST
    assert summed(store.changes(path, 2, 3).frame) == {(2,): 1}


@pytest.mark.parametrize("where", ["driver", "spark"])
def test_compaction_changes_nothing(
    spark: SparkSession, lake: Lake, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.engine.storage.write.compaction._MIN_DEAD_ROWS", 1)
    if where == "spark":
        monkeypatch.setattr("millstream.engine.storage.write.compaction._MAX_DRIVER_ROWS", -1)
    path, store = lake.path(), direct(spark)
    store.create(path, KSD, stats_columns=["k"])
    store.append(path, rows(*((i, "s", None) for i in range(20))), next_txn(), {})
    upkeep = store.upkeep(path)
    assert upkeep is not None
    with upkeep.rewriting(1 << 30) as rewritten:
        assert rewritten is None
    change(store, path, found(store, path, "k % 2 = 0"), rows((100, "s", None)), key=["k"])
    before = lake.contents()
    with upkeep.rewriting(1 << 30) as rewritten:
        assert rewritten is not None
        version = rewritten.commit()
    assert version == 3
    assert lake.contents() == before
    assert store.classify(path, 2, version).kind is RangeKind.NOTHING
    assert summed(store.changes(path, 2, version).frame) == {}
    assert lake.feed(0, version).where("_commit_version > 2").count() == 0
    with upkeep.rewriting(1 << 30) as rewritten:
        assert rewritten is None


def test_spark_keeps_a_table_we_write_in_order(store: DeltaStore, lake: Lake, path: str) -> None:
    """Delta's own commands work on what the direct path left: dead rows are purged, unused files deleted."""
    change(store, path, found(store, path, "k = 2").slice(0, 2), rows((8, "h", None)))
    before = lake.contents()
    lake.vacuum()
    assert assert_readable(lake, direct(lake.spark), path, after=2) == before
    lake.sql("REORG TABLE {t} APPLY (PURGE)")
    lake.sql("UPDATE {t} SET s = 'u' WHERE k = 8")
    assert assert_readable(lake, direct(lake.spark), path, after=2)[(8, "u", None)] == 1
    change(store, path, found(store, path, "k = 8"), None)
    assert assert_readable(lake, direct(lake.spark), path, after=2).total() == 3
    assert not list(Path(path).glob("_millstream*"))
    assert store.snapshot(path).num_rows == 3
    assert naming.FILE not in lake.spark.read.format("delta").load(path).columns
