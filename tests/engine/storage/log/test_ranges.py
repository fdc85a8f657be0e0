"""What happened between two versions, by the log alone, for everything that can happen to a user's table."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kits.storage import Lake, summed
from millstream.engine.storage import DeltaStore, RangeKind, RangeSummary
from millstream.errors import Code, MillstreamError

pytestmark = pytest.mark.spark

CREATE = (
    "CREATE TABLE {t} (k BIGINT, s STRING, unused INT) USING delta"
    " TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = '%s')"
)


@pytest.fixture(params=["true", "false"], ids=["vectors", "rewrites"])
def path(request: pytest.FixtureRequest, lake: Lake) -> str:
    lake.sql(CREATE % request.param)
    return lake.path()


def test_ordinary_life(both: Sequence[DeltaStore], lake: Lake, path: str) -> None:
    """One table, one statement per version; each range is judged and read, by both ways alike."""

    def after(statement: str) -> RangeSummary:
        version = both[0].version(path)
        lake.sql(statement)
        now = both[0].version(path)
        summaries = [store.classify(path, version, now) for store in both]
        assert summaries[0] == summaries[1]
        if summaries[0].kind.has_delta and summaries[0].kind is not RangeKind.NOTHING:
            assert summed(both[0].changes(path, version, now).frame) == lake.net_feed(version, now)
        return summaries[0]

    summary = after("INSERT INTO {t} SELECT id, 'a', 0 FROM range(20)")
    assert (summary.kind, summary.changed_rows, summary.exact) == (RangeKind.APPEND_ONLY, 20, True)
    summary = after("UPDATE {t} SET s = 'b' WHERE k < 3")
    assert (summary.kind, summary.changed_rows, summary.feed_rows, summary.exact) == (RangeKind.MUTATING, 3, 6, True)
    summary = after("DELETE FROM {t} WHERE k = 5")
    assert (summary.kind, summary.changed_rows, summary.exact) == (RangeKind.MUTATING, 1, True)
    summary = after(
        "MERGE INTO {t} t USING (SELECT id + 18 AS k FROM range(4)) s ON t.k = s.k"
        " WHEN MATCHED THEN UPDATE SET s = 'm' WHEN NOT MATCHED THEN INSERT (k, s) VALUES (s.k, 'm')"
    )
    assert (summary.kind, summary.changed_rows, summary.feed_rows) == (RangeKind.MUTATING, 4, 6)
    assert after("OPTIMIZE {t}").kind is RangeKind.NOTHING
    assert after("ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')").kind is RangeKind.NOTHING
    at = both[0].version(path)
    summary = after("INSERT OVERWRITE {t} SELECT k, s, 1 FROM {t} WHERE k > 10")
    assert (summary.kind, summary.changed_rows) == (RangeKind.REPLACED, 21 + 11)
    assert after(f"RESTORE TABLE {{t}} TO VERSION AS OF {at}").kind is RangeKind.REPLACED
    now = both[0].version(path)
    for store in both:
        summary = store.classify(path, at, now)
        assert (summary.kind, summary.direct_safe) == (RangeKind.REPLACED, True)
        assert summed(store.changes(path, at, now).frame) == {}
    assert after("DELETE FROM {t}").kind is RangeKind.REPLACED


def test_schema_changes_count_where_they_are_read(both: Sequence[DeltaStore], lake: Lake, path: str) -> None:
    lake.sql("INSERT INTO {t} VALUES (1, 'a', 1)")
    lake.sql("ALTER TABLE {t} ADD COLUMN extra STRING")
    lake.sql("INSERT INTO {t} VALUES (2, 'b', 1, 'e')")
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    lake.sql("ALTER TABLE {t} RENAME COLUMN s TO s2")
    for store in both:
        assert store.classify(path, 1, 3, ["k", "s"]).kind is RangeKind.APPEND_ONLY
        assert store.classify(path, 1, 2, ["k", "s"]).kind is RangeKind.NOTHING
        assert store.classify(path, 1, 3).kind is RangeKind.SCHEMA_CHANGED
        assert store.classify(path, 3, 4, ["k"]).kind is RangeKind.SCHEMA_CHANGED
        assert store.classify(path, 4, 5, ["k", "s"]).kind is RangeKind.SCHEMA_CHANGED


def test_replaced_by_another_table(both: Sequence[DeltaStore], lake: Lake, schema: str) -> None:
    path = lake.path()
    properties = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    lake.spark.sql(f"CREATE TABLE r (k BIGINT) USING delta LOCATION '{path}' {properties}")
    lake.spark.sql("INSERT INTO r VALUES (1)")
    ids = [store.snapshot(path).table_id for store in both]
    lake.spark.sql(f"CREATE OR REPLACE TABLE r USING delta LOCATION '{path}' {properties} AS SELECT 2L AS k")
    for store, old in zip(both, ids, strict=True):
        assert store.classify(path, 1, store.version(path)).kind is RangeKind.RECREATED
        assert store.snapshot(path).table_id != old
    shutil.rmtree(path)
    for store in both:
        assert not store.exists(path)
        with pytest.raises(MillstreamError) as caught:
            store.version(path)
        assert caught.value.code is Code.SOURCE_MISSING


def test_lost_history(both: Sequence[DeltaStore], lake: Lake, path: str) -> None:
    lake.sql("INSERT INTO {t} SELECT id, 'a', 0 FROM range(5)")
    lake.sql("UPDATE {t} SET s = 'b' WHERE k = 1")
    lake.sql("DELETE FROM {t} WHERE k = 2")
    for store in both:
        assert store.classify(path, 1, 3).kind is RangeKind.MUTATING
    lake.vacuum()
    for store in both:
        summary = store.classify(path, 1, 3)
        assert summary.kind is RangeKind.LOST
        assert "no longer exist" in summary.reason
        with pytest.raises(MillstreamError) as caught:
            store.changes(path, 1, 3)
        assert caught.value.code is Code.FRONTIER_LOST
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    now = both[0].version(path)
    lake.sql("INSERT INTO {t} VALUES (9, 'z', 1)")
    for store in both:
        assert store.classify(path, now, now + 1).kind is RangeKind.LOST
    for commit in range(3):
        (Path(path) / "_delta_log" / f"{commit:020d}.json").unlink()
    for store in both:
        assert DeltaStore(lake.spark, store._settings).classify(path, 1, now).kind is RangeKind.LOST
