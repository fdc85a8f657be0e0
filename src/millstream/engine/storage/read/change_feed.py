"""The direct reader of a change feed: Parquet files named by the log, as a Z-set in Arrow.

If a commit wrote change files, they contain all changes. Otherwise the delta follows from its data files: added files
are inserts, removed files deletes, and a file whose deletion vector changed lost the rows that are newly dead.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.data_file import CHANGE_TYPE, UnreadableFileError, concatenated, read_rows
from millstream.engine.storage.location import file_in_table
from millstream.engine.storage.log.actions import DataFile, LogCommit
from millstream.engine.storage.log.table_log import TableLog
from millstream.engine.storage.read.zset import WEIGHT_FIELD, consolidated, weighted, weighted_by_type


def read_changes(root: Path, log: TableLog, after: int, upto: int, schema: pa.Schema) -> pa.Table:
    """The delta between two versions, consolidated.

    Raises:
        UnreadableFileError, UnreadableVectorError: only Spark can read a file correctly, or it no longer exists.
    """
    parts = [part for commit in log.commits(after, upto) for part in _commit_changes(root, commit, schema)]
    return consolidated(concatenated(parts, schema.append(WEIGHT_FIELD)))


def _commit_changes(root: Path, commit: LogCommit, schema: pa.Schema) -> list[pa.Table]:
    if commit.changes:
        typed = schema.append(pa.field(CHANGE_TYPE, pa.string()))
        return [weighted_by_type(read_rows(_file(root, f), typed), CHANGE_TYPE) for f in commit.changes]
    added = {f.path: f for f in commit.adds if f.data_change}
    removed = {f.path: f for f in commit.removes if f.data_change}
    parts: list[pa.Table] = []
    for path in dict.fromkeys((*removed, *added)):
        parts += _file_changes(root, removed.get(path), added.get(path), schema)
    return parts


def _file_changes(root: Path, old: DataFile | None, new: DataFile | None, schema: pa.Schema) -> list[pa.Table]:
    dead_before = deletion_vector.read(root, old.deletion_vector) if old else None
    dead_now = deletion_vector.read(root, new.deletion_vector) if new else None
    if old and new:
        assert dead_before is not None
        assert dead_now is not None
        file = _file(root, new)
        gone, back = dead_now - dead_before, dead_before - dead_now
        deleted = [weighted(read_rows(file, schema, only=gone), -1)] if gone else []
        restored = [weighted(read_rows(file, schema, only=back), 1)] if back else []
        return deleted + restored
    if new:
        return [weighted(read_rows(_file(root, new), schema, dead=dead_now), 1)]
    if old:
        return [weighted(read_rows(_file(root, old), schema, dead=dead_before), -1)]
    return []


def _file(root: Path, action: DataFile) -> Path:
    file = file_in_table(root, action.path)
    if file is None:
        raise UnreadableFileError(f"{action.path} is outside the table's directory")
    return file
