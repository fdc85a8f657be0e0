"""Sources that change otherwise than by rows: maintained, replaced, restored, vacuumed, recreated, altered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import FEED, Lake, open_lake, refused
from millstream import Action, Code, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SUMS = "SELECT k, SUM(v) AS s, COUNT(*) AS n FROM t GROUP BY k"
ROWS = "SELECT k, v FROM t WHERE v > 1"


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "id INT, k STRING, v INT, unused STRING", *(f"{i}, '{'ab'[i % 2]}', {i}, 'u'" for i in range(6)))
    lake.stream("sums", SUMS)
    lake.stream("rows_", ROWS)
    return lake


def test_maintenance_is_no_data(t: Lake) -> None:
    t.insert("t", "7, 'a', 7, 'u'")
    t.refresh_all(expected=None)
    t.sql("OPTIMIZE t", "ALTER TABLE t SET TBLPROPERTIES ('note' = 'x')", "ALTER TABLE t ADD COLUMN later INT")
    t.refresh_all(Action.NO_DATA)


def test_overwrite_truncate_and_restore_are_deltas(t: Lake) -> None:
    t.sql("INSERT OVERWRITE t VALUES (1, 'a', 1, 'u'), (9, 'c', 9, 'u')")
    t.refresh_all(Action.DIFFERENTIAL)
    t.sql("TRUNCATE TABLE t")
    t.refresh_all(Action.DIFFERENTIAL)
    assert not t.rows("sums")
    t.sql("RESTORE TABLE t TO VERSION AS OF 1")
    t.refresh_all(expected=None)
    assert t.rows("sums") == {("a", 6, 3): 1, ("b", 9, 3): 1}
    # there and back between two refreshes
    t.sql("DELETE FROM t", "RESTORE TABLE t TO VERSION AS OF 1")
    t.refresh_all(expected=None)


def test_vacuumed_history_starts_over(t: Lake) -> None:
    confs = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM starts so many tasks: 10,000
    }
    t.sql("UPDATE t SET v = v + 1", "UPDATE t SET v = v + 1")
    for name, value in confs.items():
        t.ms.spark.conf.set(name, value)
    try:
        t.sql("VACUUM t RETAIN 0 HOURS")
    finally:
        for name in confs:
            t.ms.spark.conf.unset(name)
    with refused(Code.FRONTIER_LOST, "sums"):
        t.ms.verify("sums")
    for name in ("sums", "rows_"):
        assert t.refresh(name, Action.REINITIALIZE).reason.startswith("NO_DELTA: t: ")
    t.insert("t", "8, 'a', 8, 'u'")
    t.refresh("sums", Action.DIFFERENTIAL)


def test_a_log_that_was_cleaned_up_starts_over(t: Lake) -> None:
    log = t.root / "tables" / "t" / "_delta_log"
    t.sql("UPDATE t SET v = v + 1", "ALTER TABLE t SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    t.sql("DELETE FROM t WHERE id = 1")
    for file in log.glob("*.json"):
        if int(file.stem) < 4:
            file.unlink()
    for crc in log.glob("*.crc"):
        crc.unlink()
    t.refresh("sums", Action.REINITIALIZE)


def test_replaced_and_recreated_tables_start_over(t: Lake) -> None:
    t.sql(f"CREATE OR REPLACE TABLE t (k STRING, v BIGINT) {FEED}")
    t.insert("t", "'x', 5")
    assert "t was replaced by another table" in t.refresh("sums", Action.REINITIALIZE).reason
    assert t.ms.table("sums").dtypes == [("k", "string"), ("s", "bigint"), ("n", "bigint")]
    t.refresh("rows_", Action.REINITIALIZE)
    assert t.ms.table("rows_").dtypes == [("k", "string"), ("v", "bigint")]
    t.insert("t", "'x', 7")
    t.refresh_all(expected=None)
    assert t.last("sums").action is Action.DIFFERENTIAL

    t.sql("DROP TABLE t")
    with refused(Code.SOURCE_MISSING, "t"):
        t.ms.refresh_stream_table("sums")
    assert t.rows("sums") == {("x", 12, 2): 1}
    assert {s.name: s.status for s in t.ms.status()}["sums"] is Status.ERROR
    # as many commits as the old one had: only the id distinguishes them
    t.table("t", "k STRING, v BIGINT", "'y', 1")
    t.insert("t", "'y', 2")
    assert "replaced" in t.refresh("sums", Action.REINITIALIZE).reason
    t.refresh("rows_", Action.REINITIALIZE)
    assert {s.status for s in t.ms.status()} == {Status.ACTIVE}
    t.insert("t", "'z', 3")
    t.refresh("rows_", Action.APPEND_ONLY)


def test_a_recreated_table_records_its_changes_again(t: Lake) -> None:
    t.sql("DROP TABLE t", "CREATE TABLE t (k STRING, v INT)", "INSERT INTO t VALUES ('n', 1)")
    with pytest.warns(match="change data feed of t was switched on"):
        t.refresh("sums", Action.REINITIALIZE)
    t.insert("t", "'n', 2")
    t.refresh("sums", Action.DIFFERENTIAL)


def test_added_columns_are_not_seen(t: Lake) -> None:
    t.stream("all_", "SELECT * FROM t")
    before = t.ms.table("all_").columns
    t.sql("ALTER TABLE t ADD COLUMN extra INT", "INSERT INTO t VALUES (8, 'a', 8, 'u', 1)")
    t.queries["all_"] = "SELECT id, k, v, unused FROM t"
    t.refresh("all_", Action.APPEND_ONLY)
    assert t.ms.table("all_").columns == before
    t.refresh("sums", Action.DIFFERENTIAL)
    # nor by a process that compiles the query only now
    with open_lake(t.root) as other:
        other.queries = t.queries
        other.insert("t", "9, 'a', 9, 'u', 1")
        other.refresh("all_", Action.APPEND_ONLY)
        other.refresh("sums", Action.DIFFERENTIAL)
        assert other.ms.table("all_").columns == before


def test_dropped_renamed_and_retyped_columns(lake: Lake) -> None:
    lake.sql(
        f"""CREATE TABLE t (id INT, k STRING, v INT, unused STRING) {FEED[:-1]}, 'delta.columnMapping.mode' = 'name',
            'delta.enableTypeWidening' = 'true')"""
    )
    lake.insert("t", "1, 'a', 1, 'u'", "2, 'b', 2, 'u'")
    lake.stream("sums", SUMS)
    lake.stream("above", "SELECT k, s * 2 AS d FROM sums")
    lake.stream("rows_", ROWS)
    # unused: the feed cannot be read across it, so it starts over; the result is the same
    lake.sql("ALTER TABLE t DROP COLUMN unused", "INSERT INTO t VALUES (3, 'a', 3)")
    for name in ("sums", "rows_"):
        assert "unused" in lake.refresh(name, Action.REINITIALIZE).reason
    lake.refresh("above")
    # used, and the query still fits
    lake.sql("ALTER TABLE t ALTER COLUMN v TYPE BIGINT", "INSERT INTO t VALUES (4, 'a', 5000000000)")
    assert "v" in lake.refresh("rows_", Action.REINITIALIZE).reason
    assert lake.ms.table("rows_").dtypes[1] == ("v", "bigint")
    lake.refresh("above")
    lake.assert_exact("sums")
    # used, and it does not
    before = lake.rows("rows_")
    lake.sql("ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (5, 'a', 9)")
    with refused(Code.SOURCE_CHANGED, "rows_", "`v`", "ALTER STREAM TABLE"):
        lake.ms.refresh_stream_table("rows_")
    assert lake.rows("rows_") == before
    status = {s.name: s.status for s in lake.ms.status()}
    assert status["rows_"] is Status.ERROR
    with refused(Code.SOURCE_CHANGED, "sums"):
        lake.ms.refresh_stream_table("above")
    # the way out
    lake.sql("ALTER STREAM TABLE rows_ AS SELECT k, w AS v FROM t WHERE w > 1")
    lake.queries["rows_"] = "SELECT k, w AS v FROM t WHERE w > 1"
    lake.assert_exact("rows_")
    lake.sql("ALTER TABLE t RENAME COLUMN w TO v")
    lake.refresh("above")
    lake.assert_exact("sums")


def test_ddl_on_a_source_can_be_blocked(spark: SparkSession, tmp_path: Path) -> None:
    with open_lake(tmp_path, block_source_ddl=True) as lake:
        lake.sql(f"CREATE TABLE t (a INT, b INT, c INT) {FEED[:-1]}, 'delta.columnMapping.mode' = 'name')")
        lake.stream("s", "SELECT a, b FROM t")
        for statement in (
            "ALTER TABLE t DROP COLUMN a",
            "ALTER TABLE t RENAME COLUMN b TO d",
            "ALTER TABLE t RENAME TO u",
            "DROP TABLE t",
            "CREATE OR REPLACE TABLE t (x INT)",
        ):
            with refused(Code.SOURCE_DDL_BLOCKED, "s"):
                lake.sql(statement)
        lake.sql("ALTER TABLE t ADD COLUMN e INT", "ALTER TABLE t DROP COLUMN c", "INSERT INTO t VALUES (1, 2, 3)")
        lake.refresh("s")


def test_the_feed_is_switched_on_aloud(lake: Lake) -> None:
    lake.sql("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    with pytest.warns(match="change data feed of t was switched on") as caught:
        lake.stream("s", "SELECT a FROM t")
    assert caught[0].filename.endswith("kits/lake.py")  # the line that made the call, not one of millstream's
    lake.insert("t", "2")
    lake.refresh("s", Action.APPEND_ONLY)
    # the initial load does not need it, nor does a table that is always recomputed
    lake.sql("CREATE TABLE u (a INT)")
    lake.stream("full_", "SELECT a FROM u", "FULL")
    lake.insert("u", "2")
    lake.refresh("full_", Action.FULL)
    assert lake.ms.sql("SHOW TBLPROPERTIES u").where("key = 'delta.enableChangeDataFeed'").count() == 0


def test_the_feed_may_not_be_switched_on(spark: SparkSession, tmp_path: Path) -> None:
    with open_lake(tmp_path, enable_change_data_feed=False) as lake:
        lake.sql("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
        with refused(Code.SOURCE_NO_CHANGE_FEED, "t", "enable_change_data_feed"):
            lake.ms.create_stream_table("s", "SELECT a FROM t", refresh_mode="DIFFERENTIAL")
        assert lake.stored == []
        with pytest.warns(match="SOURCE_NO_CHANGE_FEED"):
            lake.stream("s", "SELECT a FROM t", "AUTO")
        lake.insert("t", "2")
        assert lake.refresh("s", Action.FULL).reason.startswith("NOT_INCREMENTAL: SOURCE_NO_CHANGE_FEED")
        lake.refresh("s", Action.NO_DATA)
        assert lake.ms.sql("SHOW TBLPROPERTIES t").where("key = 'delta.enableChangeDataFeed'").count() == 0


def test_a_table_without_changes_to_read_is_landed(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE p (id INT, `odd name` STRING, d DATE) USING parquet PARTITIONED BY (d)",
        "INSERT INTO p VALUES (1, 'x', DATE '2024-01-01'), (2, NULL, NULL)",
    )
    with refused(Code.SOURCE_NO_CHANGE_FEED, "p", "parquet"):
        lake.ms.create_stream_table("s", "SELECT id FROM p", refresh_mode="DIFFERENTIAL")
    with pytest.warns(match="recomputed at each refresh: SOURCE_NO_CHANGE_FEED: .*parquet"):
        lake.stream("s", "SELECT id, `odd name`, d FROM p", "AUTO")
    with pytest.warns(match="parquet"):
        lake.stream("n", "SELECT COUNT(*) AS n FROM p", "AUTO")
    lake.stream("above", "SELECT id FROM s WHERE id > 1")
    assert lake.refresh("s", Action.FULL).reason.startswith("NOT_INCREMENTAL: SOURCE_NO_CHANGE_FEED")
    lake.insert("p", "3, 'z', DATE '2024-01-02'")
    assert lake.ms.verify("s").ok  # compared with what was landed, which the insert did not touch
    lake.refresh("s", Action.FULL)
    lake.refresh("above")
    with open_lake(lake.root) as other:
        other.queries = lake.queries
        other.insert("p", "4, 'w', DATE '2024-01-02'")
        other.refresh("above")
        other.assert_exact("s")
    shutil.rmtree(lake.root / "tables" / "p")
    with refused(Code.SOURCE_MISSING, "p"):
        lake.ms.refresh_stream_table("n")
