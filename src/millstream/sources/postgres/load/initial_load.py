"""The first load of a captured table: all its rows as of one snapshot, on the driver if they are few, else on Spark."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.sources.postgres.load.chunks import TARGET_ROWS, Chunk, chunks, read_chunks
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot, Progress
from millstream.sources.postgres.load.spark_reader import Reading, frame_of, write_files
from millstream.sources.postgres.values.decode import batch_schema
from millstream.sources.postgres.values.types import MirrorColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.sources.postgres.server.relations import Relation

DRIVER_ROWS = 2_000_000
DRIVER_BYTES = 256 << 20
"""Up to here the driver reads by itself: on one machine twice as fast as workers that pass the rows to the JVM."""
_READERS = 4


def read_small(
    snapshot: ExportedSnapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    progress: Progress | None = None,
) -> pa.Table | None:
    """The relation's rows as of the snapshot, if they are few enough for the driver; None if not.

    Raises:
        MillstreamError: see `read_chunk`.
    """
    pieces = chunks(snapshot.connection, relation, columns, trusted=snapshot.trusted)
    if sum(c.rows for c in pieces) > DRIVER_ROWS or sum(c.size_bytes for c in pieces) > DRIVER_BYTES:
        return None
    read: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in _side_by_side(snapshot, pieces, columns, progress):
        read.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > 2 * DRIVER_BYTES:  # the estimate of a view can be far off
            return None
    return pa.Table.from_batches(read, schema=batch_schema(columns))


def _side_by_side(
    snapshot: ExportedSnapshot, pieces: Sequence[Chunk], columns: Sequence[MirrorColumn], progress: Progress | None
) -> Iterator[pa.RecordBatch]:
    """The rows of all chunks in any order, over several connections: decoding releases Python's lock."""
    waiting, found = deque(pieces), SimpleQueue[pa.RecordBatch | None]()
    is_given_up = Event()

    def remaining() -> Iterator[Chunk]:
        with suppress(IndexError):
            while not is_given_up.is_set():
                yield waiting.popleft()

    def read() -> None:
        try:
            for batch in read_chunks(snapshot.address, snapshot.name, remaining(), columns):
                found.put(batch)
                if is_given_up.is_set():
                    return
        finally:
            found.put(None)

    expected, done = sum(c.rows for c in pieces), 0
    readers = max(1, min(len(pieces), os.cpu_count() or 1, _READERS))
    with ThreadPoolExecutor(readers, "millstream-reader") as pool:
        reading = [pool.submit(read) for _ in range(readers)]
        try:
            for _ in range(readers):
                for batch in iter(found.get, None):
                    done += batch.num_rows
                    yield batch
                    if progress is not None:
                        progress(done, max(done, expected))
                for future in reading:
                    if future.done():
                        future.result()
        finally:
            is_given_up.set()
        for future in reading:
            future.result()


def spark_frame(
    spark: SparkSession,
    snapshot: ExportedSnapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    progress: Progress | None = None,
    target_rows: int = TARGET_ROWS,
) -> DataFrame:
    """The relation's rows as of the snapshot, read by Spark's workers.

    The snapshot must stay open until the last action over the frame has ended. These actions raise the errors of
    workers: see `coded_error`.
    """
    return frame_of(spark, _reading(snapshot, relation, columns, progress, target_rows))


def spark_files(
    spark: SparkSession,
    snapshot: ExportedSnapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    directory: Path,
    progress: Progress | None = None,
    target_rows: int = TARGET_ROWS,
) -> list[Path]:
    """The relation's rows as of the snapshot in Parquet files, which Spark's workers write as they read.

    Args:
        directory: where the workers can write and the driver can read.

    Raises:
        PySparkException: the error of a worker; see `coded_error`.
    """
    return write_files(spark, _reading(snapshot, relation, columns, progress, target_rows), directory)


def _reading(
    snapshot: ExportedSnapshot,
    relation: Relation,
    columns: Sequence[MirrorColumn],
    progress: Progress | None,
    target_rows: int,
) -> Reading:
    pieces = chunks(snapshot.connection, relation, columns, target_rows, snapshot.trusted)
    if progress is not None:
        snapshot.report(sum(c.rows for c in pieces), progress)
    return Reading(snapshot.address, snapshot.name, tuple(pieces), tuple(columns))
