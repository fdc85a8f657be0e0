"""Files that others write and our commit adopts: plain Parquet in a staging directory, then renamed into the table.

Spark writes most of them. Delta's own writer would write the same files, and spend longer on its commit than Spark on
the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from millstream.engine.storage.files.data_file import bound_as_json, has_bounds
from millstream.engine.storage.location import CHANGE_DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.engine.storage.log.actions import Json

_DIRECTORY = "_millstream_staging"  # Delta, including VACUUM, ignores names that start with an underscore
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def written_by_spark(root: Path, frame: DataFrame) -> Iterator[list[Path]]:
    """Write the rows of `frame` to Parquet files; files that are not adopted are deleted at the end."""
    with incoming_directory(root) as directory:
        frame.write.option("compression", "snappy").parquet(str(directory))
        yield sorted(directory.glob("part-*.parquet"))


@contextmanager
def incoming_directory(root: Path) -> Iterator[Path]:
    """A path for a new directory next to the table's files; the directory is deleted at the end if it was created."""
    directory = root / _DIRECTORY / str(uuid.uuid4())
    _delete_abandoned(directory.parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with _ignored_if_in_use():
            directory.parent.rmdir()


def _delete_abandoned(parent: Path) -> None:
    """Delete the directories of killed writers, after a day."""
    for directory in parent.iterdir() if parent.exists() else ():
        if time.time() - directory.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _ignored_if_in_use() -> Iterator[None]:
    try:
        yield
    except OSError:
        return


def adopted_data(root: Path, file: Path, stats_columns: Sequence[str]) -> Json | None:
    """Move an incoming file into the table; returns the value of its `add` action, `None` if it has no rows."""
    stats = footer_statistics(file, stats_columns)
    if not stats["numRecords"]:
        return None
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    size = _moved(file, root / name)
    return {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(stats, separators=(",", ":"), ensure_ascii=False),
    }


def adopted_changes(root: Path, file: Path) -> Json:
    """Move an incoming file into the change feed; returns the value of its `cdc` action."""
    name = f"{CHANGE_DIRECTORY}/cdc-00000-{uuid.uuid4()}.c000.snappy.parquet"
    (root / CHANGE_DIRECTORY).mkdir(exist_ok=True)
    return {"path": name, "partitionValues": {}, "size": _moved(file, root / name), "dataChange": False}


def _moved(file: Path, target: Path) -> int:
    os.rename(file, target)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    return os.path.getsize(target)


def num_rows(files: Sequence[Path]) -> int:
    """Rows in incoming files, from their footers."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def footer_statistics(file: Path, columns: Sequence[str]) -> Json:
    """A file's Delta statistics from its Parquet footer."""
    footer = pq.read_metadata(file)
    schema = footer.schema.to_arrow_schema()
    minima: dict[str, object] = {}
    maxima: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name in columns:
        if not has_bounds(schema.field(name).type):
            continue
        index = next(i for i in range(footer.num_columns) if footer.schema.column(i).path == name)
        groups = [footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups)]
        if any(s is None or not s.has_null_count for s in groups):
            continue
        nulls[name] = sum(s.null_count for s in groups)
        bounded = [s for s in groups if s.num_values]
        if not bounded or not all(s.has_min_max for s in bounded):
            continue
        low, high = bound_as_json(min(s.min for s in bounded)), bound_as_json(max(s.max for s in bounded))
        if low is not None and high is not None:
            minima[name], maxima[name] = low, high
    return {
        "numRecords": footer.num_rows,
        "minValues": minima,
        "maxValues": maxima,
        "nullCount": nulls,
        "tightBounds": True,
    }
