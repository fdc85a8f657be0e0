"""What the storage tests share: making tables, and reading them as bags in every way there is."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from millstream import naming
from millstream.engine.storage import ChangeSet, DeltaStore, Txn
from millstream.engine.storage.schema import arrow_schema
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Bag = Counter[tuple[Any, ...]]


def schema_of(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)


def rows(ddl: str, *values: Sequence[Any]) -> pa.Table:
    """Rows on the driver, given as tuples."""
    schema = arrow_schema(schema_of(ddl))
    return pa.Table.from_pylist([dict(zip(schema.names, v, strict=True)) for v in values], schema=schema)


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

    def contents(self, name: str = "t", version: int | None = None) -> Bag:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return bag(reader.load(self.path(name)))

    def feed(self, after: int, upto: int, name: str = "t") -> dict[tuple[Any, ...], int]:
        """The net effect of Delta's own change feed."""
        frame = (
            self.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", after + 1)
            .option("endingVersion", upto)
            .load(self.path(name))
        )
        sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1L ELSE -1L END"
        columns = [naming.quote(c) for c in frame.columns if not c.startswith("_c")]
        return summed(frame.selectExpr(*columns, f"{sign} AS {naming.WEIGHT}"))


def other_ways(spark: SparkSession) -> Iterable[DeltaStore]:
    """A fresh store of each way: nothing remembered."""
    return [DeltaStore(spark, Settings(direct_way="auto")), DeltaStore(spark, Settings(direct_way="never"))]


def assert_agree(lake: Lake, path: str, after: int, name: str = "t") -> Bag:
    """Contents and changes since `after` are the same through plain Spark and through both ways; gives the contents."""
    stores = other_ways(lake.spark)
    expected = lake.contents(name)
    for store in stores:
        version = store.version(path)
        assert bag(store.read(path, version)) == expected
        located = store.read_located(path, version)
        positions = bag(located.select(naming.FILE, naming.ROW))
        assert len(positions) == sum(positions.values()) == sum(expected.values())
        assert bag(located.drop(naming.FILE, naming.ROW)) == expected
        assert store.snapshot(path).num_rows in (None, sum(expected.values()))
        if after < version:
            assert summed(store.changes(path, after, version).frame) == lake.feed(after, version, name)
    return expected


def located(store: DeltaStore, path: str, condition: str, version: int | None = None) -> pa.Table:
    """The stored rows a condition finds, with their positions."""
    at = store.version(path) if version is None else version
    return store.read_located(path, at).where(condition).toArrow()


_numbers = iter(range(1, 1_000_000))


def next_txn(app_id: str = "app") -> Txn:
    return Txn(app_id, next(_numbers))


def new_app() -> str:
    return str(uuid.uuid4())


def change(
    store: DeltaStore,
    path: str,
    removed: pa.Table | DataFrame | None,
    added: pa.Table | DataFrame | None,
    *,
    key: Sequence[str] = (),
    txn: Txn | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Any:
    """Apply a change at the table's current version."""
    expected = store.version(path)
    return store.apply(path, ChangeSet(removed, added, expected, key), txn or next_txn(), metadata or {})
