"""The public stage of a stream table, as a refresh leaves it, without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kits.catalog import body
from millstream import naming
from millstream.catalog.models import Definition, NewStreamTable, Stage, StreamTable, new_id
from millstream.engine.storage import DeltaStore, Txn
from millstream.engine.storage.files.schema import arrow_schema
from millstream.naming import TableName
from millstream.results import RefreshMode
from millstream.serving.table_server import StageFeed
from millstream.settings import Settings

SCHEMA = StructType([StructField("k", LongType()), StructField("s", StringType())])
Row = tuple[Any, ...]


class StoredStage:
    """A stage, to which rows are added by one commit after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stage = new_id()
        self.store = DeltaStore(None, Settings())  # type: ignore[arg-type]
        self.store.create(str(directory), SCHEMA, stats_columns=())
        self.refreshes = 0

    def add(self, *rows: Row) -> int:
        """Commit rows; gives the version."""
        self.refreshes += 1
        fields = arrow_schema(SCHEMA)
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=fields)
        return self.store.append(str(self.directory), table, Txn(self.stage, self.refreshes), {}).version

    def reopened(self) -> None:
        """What another process sees."""
        self.store = DeltaStore(None, Settings())  # type: ignore[arg-type]

    @property
    def new_table(self) -> NewStreamTable:
        """Its stream table, to be recorded in a catalog."""
        return NewStreamTable(
            id=new_id(),
            name=TableName.parse("totals"),
            schedule="1m",
            refresh_mode=RefreshMode.AUTO,
            definition=Definition(
                original_query="SELECT 1",
                dialect="spark",
                body=body(outputs=tuple(SCHEMA.names)),
                settings={},
                columns=(("k", "bigint"), ("s", "string")),
                dependencies=(),
            ),
            stages=(Stage(id=self.stage, ordinal=0, path=str(self.directory), is_public=True),),
        )

    def feed(self, table: StreamTable) -> StageFeed:
        """What a served table reads of it."""
        return StageFeed(self.store, table, self.directory.parent / "spill")


def weights(zset: pa.Table) -> Counter[Row]:
    """A Z-set's rows, each with its weight."""
    found: Counter[Row] = Counter()
    for row in zset.to_pylist():
        weight = row.pop(naming.WEIGHT)
        found[tuple(row.values())] += weight
    return found
