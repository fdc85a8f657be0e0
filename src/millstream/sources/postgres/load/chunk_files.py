"""A chunk as a Parquet file, written by the process that reads it.

Passing the rows to the JVM's writer would take twice as long as everything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from millstream.engine.storage.files.data_file import open_writer
from millstream.engine.storage.write.commit import writing

GROUP_BYTES = 64 << 20
"""How much is held in memory until it is written: a chunk is bounded in rows, not in bytes."""


def write_file(directory: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> tuple[str, int] | None:
    """Write a new file; returns its name and number of rows, or None and no file if there are no rows.

    The name is a new one each time: a task that runs again must not meet the file of its first attempt.

    Raises:
        MillstreamError: LAKE_UNWRITABLE.
    """
    rows, file = 0, directory / f"part-{uuid.uuid4()}.parquet"
    groups = _groups(batches)
    first = next(groups, None)
    if first is None:
        return None
    with writing(str(directory)), open_writer(file, schema) as writer:
        for group in chain([first], groups):
            table = pa.Table.from_batches(group, schema=schema)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            rows += table.num_rows
    return file.name, rows


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        group.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
