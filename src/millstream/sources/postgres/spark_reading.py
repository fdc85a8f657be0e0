"""Chunks read by Spark's workers: a data source whose partitions are the chunks.

What a worker needs, the password among it, travels inside pickled objects. The options of a data source would be shown
by `explain` and in Spark's UI, so there are none.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.address import ResolvedAddress
from millstream.sources.postgres.chunks import Chunk, read_chunk
from millstream.sources.postgres.types import MirrorColumn, mirror_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "millstream_postgres"
_registering = threading.Lock()  # the name is one per session


@dataclass(frozen=True, slots=True)
class Reading:
    """What the workers read, and how they reach it."""

    address: ResolvedAddress
    snapshot_name: str
    chunks: tuple[Chunk, ...]
    columns: tuple[MirrorColumn, ...]


class ChunkPartition(InputPartition):
    """One chunk."""

    def __init__(self, chunk: Chunk) -> None:
        super().__init__(None)
        self.chunk = chunk


class ChunkReader(DataSourceReader):
    """Reads each chunk as Arrow batches under the exported snapshot."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        """The chunks."""
        return [ChunkPartition(chunk) for chunk in self._reading.chunks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk."""
        assert isinstance(partition, ChunkPartition)
        reading = self._reading
        return read_chunk(reading.address, reading.snapshot_name, partition.chunk, reading.columns)


def frame_of(spark: SparkSession, reading: Reading) -> DataFrame:
    """The rows of all chunks, read when an action runs, and again for each action."""
    _use_this_python(spark)
    with _registering:
        spark.dataSource.register(_source(reading))
        return spark.read.format(_FORMAT).load()


def coded_error(error: Exception) -> MillstreamError | None:
    """The error a worker met, which Spark reports as a text."""
    for code in Code:
        _, found, rest = str(error).partition(f"MillstreamError: [{code.value}] ")
        if found:
            message, *more = rest.splitlines()
            hint = more[0].removeprefix("Hint: ") if more and more[0].startswith("Hint: ") else None
            return MillstreamError(code, message, hint=hint)
    return None


def _source(reading: Reading) -> type[DataSource]:
    """A class of its own for each reading: Spark makes the instances, in another process, from the pickled class."""

    class PostgresChunks(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def schema(self) -> StructType:
            return mirror_schema(reading.columns)

        def reader(self, schema: StructType) -> DataSourceReader:
            return ChunkReader(reading)

    return PostgresChunks


def _use_this_python(spark: SparkSession) -> None:
    """On one machine the workers run the same Python; on a cluster it is configured (PYSPARK_PYTHON)."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
