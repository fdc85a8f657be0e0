"""Chunks read by Spark's workers: a data source whose partitions are the chunks.

What a worker needs, including the password, is passed in pickled objects. `explain` and Spark's UI would show the
options of a data source, so there are none.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import ResolvedAddress
from millstream.sources.postgres.load.chunk_files import write_file
from millstream.sources.postgres.load.chunks import Chunk, read_chunk
from millstream.sources.postgres.values.decode import batch_schema
from millstream.sources.postgres.values.types import MirrorColumn, mirror_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "millstream_postgres"
_FILES = "file string, rows bigint"
_registering = threading.Lock()  # a session has one data source by that name


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


class ChunkWriter(ChunkReader):
    """Writes each chunk as a Parquet file into a directory that workers and driver share.

    Spark gets one row per file, with its name: only files of successful attempts are reported.
    """

    def __init__(self, reading: Reading, directory: Path) -> None:
        super().__init__(reading)
        self._directory = directory

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The name of a chunk's file, and its number of rows."""
        import pyarrow as pa

        written = write_file(self._directory, super().read(partition), batch_schema(self._reading.columns))
        if written is not None:
            name, rows = written
            yield pa.RecordBatch.from_pydict({"file": [name], "rows": pa.array([rows], pa.int64())})


def frame_of(spark: SparkSession, reading: Reading) -> DataFrame:
    """The rows of all chunks, read when an action runs, and again for each action."""
    return _frame(spark, mirror_schema(reading.columns), ChunkReader(reading))


def write_files(spark: SparkSession, reading: Reading, directory: Path) -> list[Path]:
    """Have the workers write the chunks as Parquet files; returns those that have rows."""
    written = _frame(spark, _FILES, ChunkWriter(reading, directory)).collect()
    return [directory / row.file for row in written]


def _frame(spark: SparkSession, schema: str | StructType, reader: DataSourceReader) -> DataFrame:
    _use_this_python(spark)
    with _registering:
        spark.dataSource.register(_source(schema, reader))
        return spark.read.format(_FORMAT).load()


def coded_error(error: Exception) -> MillstreamError | None:
    """The coded error of a worker, which Spark reports as a text."""
    for code in Code:
        _, found, rest = str(error).partition(f"MillstreamError: [{code.value}] ")
        if found:
            message, *more = rest.splitlines()
            hint = more[0].removeprefix("Hint: ") if more and more[0].startswith("Hint: ") else None
            return MillstreamError(code, message, hint=hint)
    return None


def _source(given: str | StructType, reading: DataSourceReader) -> type[DataSource]:
    """A separate class for each reading: Spark creates the instances, in another process, from the pickled class."""

    class PostgresChunks(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def schema(self) -> str | StructType:
            return given

        def reader(self, schema: StructType) -> DataSourceReader:
            return reading

    return PostgresChunks


def _use_this_python(spark: SparkSession) -> None:
    """On one machine the workers run the same Python; on a cluster it is configured (PYSPARK_PYTHON)."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
