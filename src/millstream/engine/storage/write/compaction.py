"""Rewriting small files and files with many dead rows; no row changes, so the change feed does not show it.

Small commits merge small files as they go (`fold`); this is for the remaining ones, when there is nothing else to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.read.scan import scan
from millstream.engine.storage.write.adoption import adopted_data, written_by_spark
from millstream.engine.storage.write.commit import changes_nothing, commit_info, conflict, put_if_absent
from millstream.engine.storage.write.draft import Draft, stats_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SMALL_FILES = 32
_SMALL_BYTES = 32 << 20
_TARGET_BYTES = 256 << 20
_MAX_DEAD_SHARE = 0.05
_MIN_DEAD_ROWS = 1_000


def files_to_rewrite(state: TableState) -> list[DataFile]:
    """The files worth rewriting: none, unless there are many small ones or one has many dead rows."""
    small = [f for f in state.files.values() if f.size < _SMALL_BYTES]
    dying = [f for f in state.files.values() if _is_dying(f)]
    if len(small) > MAX_SMALL_FILES:
        return list({f.path: f for f in (*small, *dying)}.values())
    return dying


def _is_dying(file: DataFile) -> bool:
    rows = file.num_records or 0
    return file.num_dead >= _MIN_DEAD_ROWS and file.num_dead > _MAX_DEAD_SHARE * rows


def compact(spark: SparkSession, log: TableLog, root: Path, state: TableState, files: Sequence[DataFile]) -> int:
    """Write the live rows of `files` into new ones, in one commit; returns its version.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` if another writer touched files meanwhile.
    """
    rows = scan(spark, root, replace(state, files={f.path: f for f in files}), None, located=False)
    parts = max(1, round(sum(f.size for f in files) / _TARGET_BYTES))
    draft = Draft(root, state)
    with written_by_spark(root, rows.coalesce(parts)) as written, draft.kept_if_committed() as keep:
        for file in files:
            draft.remove(file, data_change=False)
        for part in written:
            if action := adopted_data(root, part, stats_columns(state)):
                draft.add_new({**action, "dataChange": False})
        metrics = {"numRemovedFiles": len(files), "numAddedFiles": draft.num_new_files}
        info = commit_info("OPTIMIZE", state.version, metrics, {})
        version = state.version
        while not put_if_absent(root, version + 1, [info, *draft.actions]):
            version += 1
            other = log.commits(version - 1, version)[0]
            if not changes_nothing(other):
                raise conflict(log.path, other)
        keep()
    return version + 1
