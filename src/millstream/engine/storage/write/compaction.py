"""Rewriting small files and files with many dead rows; no row changes, so the change feed does not show it.

Small commits merge small files as they go (`fold`); this is for the remaining ones, when there is nothing else to do.
The new files are written first, next to the table and without a lock; only the commit needs the table to stand still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.engine.storage.files.data_file import UnreadableFileError, write_data
from millstream.engine.storage.files.deletion_vector import UnreadableVectorError
from millstream.engine.storage.files.schema import arrow_schema_of
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableState
from millstream.engine.storage.read.driver_scan import driver_scan
from millstream.engine.storage.read.scan import scan
from millstream.engine.storage.write.adoption import adopted_data, incoming_directory
from millstream.engine.storage.write.commit import commit_info, put_if_absent
from millstream.engine.storage.write.draft import Draft, stats_columns
from millstream.engine.storage.write.durable import sync_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SMALL_FILES = 32
_SMALL_BYTES = 32 << 20
_TARGET_BYTES = 256 << 20
_MAX_TINY_FILES = 4
_TINY_BYTES = 1 << 20
_MAX_DEAD_SHARE = 0.05
_MIN_DEAD_ROWS = 1_000
_MAX_DRIVER_BYTES = 16 << 20
_MAX_DRIVER_ROWS = 200_000


def files_to_rewrite(state: TableState) -> list[DataFile]:
    """The files worth rewriting: none, unless there are many small ones or one has many dead rows."""
    small = [f for f in state.files.values() if f.size < _SMALL_BYTES]
    dying = [f for f in state.files.values() if _is_dying(f)]
    is_tiny = sum(f.size for f in small) < _TINY_BYTES
    if len(small) > (_MAX_TINY_FILES if is_tiny else MAX_SMALL_FILES):
        return list({f.path: f for f in (*small, *dying)}.values())
    return dying


def bounded(files: Iterable[DataFile], max_bytes: int) -> list[DataFile]:
    """The smallest of the files, up to a total size; at least one.

    >>> file = lambda size: DataFile(f"{size}", size, True, {})
    >>> [f.size for f in bounded([file(7), file(1), file(3), file(9)], 10)]
    [1, 3]
    >>> [f.size for f in bounded([file(70), file(90)], 10)]
    [70]
    """
    chosen: list[DataFile] = []
    total = 0
    for file in sorted(files, key=lambda f: f.size):
        total += file.size
        if chosen and total > max_bytes:
            break
        chosen.append(file)
    return chosen


def _is_dying(file: DataFile) -> bool:
    rows = file.num_records or 0
    return file.num_dead >= _MIN_DEAD_ROWS and file.num_dead > _MAX_DEAD_SHARE * rows


@dataclass(frozen=True)
class Rewritten:
    """The live rows of some files of a table, in new files that no commit names yet."""

    root: Path
    state: TableState
    files: Sequence[DataFile]
    written: Sequence[Path]

    def commit(self) -> int | None:
        """Replace the old files by the new ones; returns the version, or None if the table has changed since.

        The new files are on disk before the log names them: the old ones may be deleted later, and their source may
        have discarded the rows by then.
        """
        state, draft = self.state, Draft(self.root, self.state)
        with draft.kept_if_committed() as keep:
            for file in self.files:
                draft.remove(file, data_change=False)
            for part in self.written:
                if action := adopted_data(self.root, part, stats_columns(state)):
                    draft.add_new({**action, "dataChange": False})
            metrics = {"numRemovedFiles": len(self.files), "numAddedFiles": draft.num_new_files}
            actions = [commit_info("OPTIMIZE", state.version, metrics, {}), *draft.actions]
            sync_files(self.root, actions)
            if not put_if_absent(self.root, state.version + 1, actions, is_durable=True):
                return None
            keep()
        return state.version + 1


@contextmanager
def rewriting(spark: SparkSession, root: Path, state: TableState, files: Sequence[DataFile]) -> Iterator[Rewritten]:
    """Write the live rows of some files into new ones, which are deleted at the end unless they were committed."""
    only = replace(state, files={f.path: f for f in files})
    with incoming_directory(root) as directory:
        if not _rewritten_here(root, only, directory):
            parts = max(1, round(only.size_bytes / _TARGET_BYTES))
            rows = scan(spark, root, only, None, located=False).coalesce(parts)
            rows.write.option("compression", "snappy").mode("overwrite").parquet(str(directory))
        yield Rewritten(root, state, files, sorted(directory.glob("part-*.parquet")))


def _rewritten_here(root: Path, state: TableState, directory: Path) -> bool:
    """Rewrite few rows without a Spark job; False if they are many, or only Spark can read them."""
    rows = state.num_rows
    if rows is None or rows > _MAX_DRIVER_ROWS or state.size_bytes > _MAX_DRIVER_BYTES:
        return False
    try:
        live = driver_scan(root, state, arrow_schema_of(state.metadata.schema_string), located=False)
    except (UnreadableFileError, UnreadableVectorError):
        return False
    directory.mkdir(parents=True, exist_ok=True)
    if live.num_rows:
        write_data(directory, live, ())
    return True
