"""What the storage tests share: making tables, and reading them as bags in every way there is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage import ChangeSet, Commit, DeltaStore, Txn
from millstream.engine.storage.files.schema import arrow_schema, arrow_schema_of
from millstream.engine.storage.read.driver_scan import driver_scan
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Bag = Counter[tuple[Any, ...]]

KSD = StructType([StructField("k", LongType()), StructField("s", StringType()), StructField("d", DecimalType(20, 3))])
"""The columns most tests use; given as types, it needs no JVM."""


def rows(*values: Sequence[Any], schema: StructType = KSD) -> pa.Table:
    """Rows on the driver, given as tuples."""
    arrow = arrow_schema(schema)
    return pa.Table.from_pylist([dict(zip(arrow.names, v, strict=True)) for v in values], schema=arrow)


def hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return ("dict", *sorted((k, hashable(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return ("list", *map(hashable, value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


def bag_of_arrow(table: pa.Table) -> Bag:
    return Counter(tuple(map(hashable, row.values())) for row in table.to_pylist(maps_as_pydicts="strict"))


def bag(frame: DataFrame) -> Bag:
    return bag_of_arrow(frame.toArrow())


def without_places(table: pa.Table) -> pa.Table:
    return table.drop_columns([naming.FILE, naming.ROW])


def summed(zset: pa.Table | DataFrame) -> dict[tuple[Any, ...], int]:
    """A Z-set as its net effect: row to weight, zeros left out."""
    table = zset if isinstance(zset, pa.Table) else zset.toArrow()
    total: Counter[tuple[Any, ...]] = Counter()
    at = table.column_names.index(naming.WEIGHT)
    for row in table.to_pylist(maps_as_pydicts="strict"):
        values = [hashable(v) for v in row.values()]
        weight = values.pop(at)
        total[tuple(values)] += weight
    return {row: weight for row, weight in total.items() if weight}


def difference(before: Bag, after: Bag) -> dict[tuple[Any, ...], int]:
    """The net effect that leads from one bag to the other."""
    return {row: after[row] - before[row] for row in before.keys() | after.keys() if after[row] != before[row]}


@dataclass
class Lake:
    """Tables of one test, seen by plain Spark."""

    spark: SparkSession
    root: Path

    def path(self, name: str = "t") -> str:
        return str(self.root / name)

    def sql(self, statement: str, name: str = "t") -> None:
        """Run a statement in which `{t}` stands for the table."""
        self.spark.sql(statement.format(t=f"delta.`{self.path(name)}`")).collect()

    def vacuum(self, name: str = "t") -> None:
        """Delete every file the newest version does not need."""
        confs = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM makes so many tasks: 10,000
        }
        for key, value in confs.items():
            self.spark.conf.set(key, value)
        self.sql("VACUUM {t} RETAIN 0 HOURS", name)
        for key in confs:
            self.spark.conf.unset(key)

    def contents(self, name: str = "t", version: int | None = None) -> Bag:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return bag(reader.load(self.path(name)))

    def feed(self, after: int, upto: int, name: str = "t") -> DataFrame:
        """Delta's own change feed."""
        return (
            self.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", after + 1)
            .option("endingVersion", upto)
            .load(self.path(name))
        )

    def net_feed(self, after: int, upto: int, name: str = "t") -> dict[tuple[Any, ...], int]:
        """The net effect of Delta's own change feed."""
        feed = self.feed(after, upto, name)
        sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1L ELSE -1L END"
        columns = [naming.quote(c) for c in feed.columns if not c.startswith("_c")]
        return summed(feed.selectExpr(*columns, f"{sign} AS {naming.WEIGHT}"))


def assert_readable(lake: Lake, store: DeltaStore, path: str, after: int, name: str = "t") -> Bag:
    """Plain Spark and `store` see the same contents, positions and changes since `after`; gives the contents."""
    version = store.version(path)
    expected = lake.contents(name)
    located = store.read_located(path, version).toArrow()
    assert bag_of_arrow(without_places(located)) == expected
    places = bag_of_arrow(located.select([naming.FILE, naming.ROW]))
    assert len(places) == located.num_rows
    assert {file for file, _ in places} <= set(store._state(path, version).files)
    assert store.snapshot(path).num_rows == located.num_rows
    if after < version:
        assert summed(store.changes(path, after, version).frame) == lake.net_feed(after, version, name)
    return expected


def direct(spark: SparkSession | None) -> DeltaStore:
    """A store of the direct path that remembers nothing."""
    return DeltaStore(spark, Settings(direct_way="auto"))  # type: ignore[arg-type]


def found(store: DeltaStore, path: str, condition: str) -> pa.Table:
    """The stored rows a condition finds, with their positions."""
    return store.read_located(path, store.version(path)).where(condition).toArrow()


def stored(store: DeltaStore, path: str) -> pa.Table:
    """All stored rows with their positions, without Spark."""
    state = store._state(path, None)
    return driver_scan(Path(path), state, arrow_schema_of(state.metadata.schema_string), located=True)


_numbers = itertools.count(1)


def next_txn(app_id: str = "app") -> Txn:
    return Txn(app_id, next(_numbers))


def change(
    store: DeltaStore,
    path: str,
    removed: pa.Table | DataFrame | None,
    added: pa.Table | DataFrame | None,
    *,
    key: Sequence[str] = (),
    txn: Txn | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Commit | None:
    """Apply a change at the table's current version."""
    expected = store.version(path)
    return store.apply(path, ChangeSet(removed, added, expected, key), txn or next_txn(), metadata or {})
