"""The first load of a captured table: all its rows as of one snapshot, on the driver if they are few, else on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.sources.postgres.chunks import TARGET_ROWS, Chunk, chunks, read_chunk, read_chunks
from millstream.sources.postgres.decode import batch_schema
from millstream.sources.postgres.snapshot import Progress, Snapshot
from millstream.sources.postgres.spark_reading import Reading, coded_error, frame_of
from millstream.sources.postgres.types import MirrorColumn, mirror_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.sources.postgres.relations import Relation

__all__ = [
    "Chunk",
    "Progress",
    "Snapshot",
    "chunks",
    "coded_error",
    "frame",
    "read_batches",
    "read_chunk",
    "read_small",
    "spark_frame",
]

DRIVER_ROWS = 200_000
"""From about this many rows on, Spark's workers are faster than the driver alone."""
DRIVER_BYTES = 256 << 20


def frame(
    spark: SparkSession,
    snapshot: Snapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    progress: Progress | None = None,
) -> DataFrame:
    """The relation's rows as of the snapshot, which must stay open until the last action over the frame has ended.

    Raises:
        MillstreamError: see `read_chunk`; what a worker meets comes out of the action, see `coded_error`.
    """
    rows = read_small(snapshot, relation, columns, progress)
    if rows is not None:
        return spark.createDataFrame(rows, schema=mirror_schema(columns))
    return spark_frame(spark, snapshot, relation, columns, progress)


def read_small(
    snapshot: Snapshot, relation: Relation, columns: Sequence[MirrorColumn], progress: Progress | None = None
) -> pa.Table | None:
    """The relation's rows as of the snapshot, if they are few enough for the driver; None if not."""
    pieces = chunks(snapshot.connection, relation, columns)
    if sum(c.rows for c in pieces) > DRIVER_ROWS or sum(c.size_bytes for c in pieces) > DRIVER_BYTES:
        return None
    read: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in read_batches(snapshot, pieces, columns, progress):
        read.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > 2 * DRIVER_BYTES:  # the estimate of a view can be far off
            return None
    return pa.Table.from_batches(read, schema=batch_schema(columns))


def read_batches(
    snapshot: Snapshot,
    pieces: Sequence[Chunk],
    columns: Sequence[MirrorColumn],
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of some chunks as of the snapshot, read by this process, in batches of a few megabytes."""
    expected, done = sum(c.rows for c in pieces), 0
    for batch in read_chunks(snapshot.address, snapshot.name, pieces, columns):
        done += batch.num_rows
        yield batch
        if progress is not None:
            progress(done, max(done, expected))


def spark_frame(
    spark: SparkSession,
    snapshot: Snapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    progress: Progress | None = None,
    target_rows: int = TARGET_ROWS,
) -> DataFrame:
    """As `frame`, always read by Spark's workers."""
    pieces = chunks(snapshot.connection, relation, columns, target_rows)
    if progress is not None:
        snapshot.report(sum(c.rows for c in pieces), progress)
    return frame_of(spark, Reading(snapshot.address, snapshot.name, tuple(pieces), tuple(columns)))
