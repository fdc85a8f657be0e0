"""Commits to one table; chooses the path by the kind of table, its location, and where the rows are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.engine.storage.files.deletion_vector import UnreadableVectorError
from millstream.engine.storage.files.schema import spark_schema
from millstream.engine.storage.log.features import marks_rows, writing_obstacle
from millstream.engine.storage.log.log_files import LogGoneError
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import ChangeSet, Commit, Rows, Txn, Write
from millstream.engine.storage.spark import delta_connector, merge
from millstream.engine.storage.write.adopting_commit import (
    commit_changes,
    commit_frame,
    commit_written,
    fits,
    has_types,
)
from millstream.engine.storage.write.checkpoint import is_due, write_checkpoint
from millstream.engine.storage.write.commit import already_done, changes_nothing, conflict, writing
from millstream.engine.storage.write.direct_commit import commit_contents, commit_rows
from millstream.engine.storage.write.widen import commit_wider
from millstream.errors import Code, MillstreamError
from millstream.settings import MergeStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Metadata = Mapping[str, object]

_locks: dict[str, threading.RLock] = {}
_locks_lock = threading.Lock()


def _lock_of(path: str) -> threading.RLock:
    """One writer of a table at a time in this process; between processes, the commit itself decides."""
    with _locks_lock:
        return _locks.setdefault(path, threading.RLock())


@dataclass(frozen=True)
class TableWriter:
    """Commits to the table at `path`.

    Args:
        root: the table's directory, if the direct path may be used.
        locate: returns the rows of a version with their positions.
        max_driver_rows: we write changes of up to this many rows, Spark writes larger ones.
        strategy: how changes are applied, see `Settings.merge_strategy`.
    """

    spark: SparkSession
    path: str
    log: TableLog
    root: Path | None
    locate: Callable[[int], DataFrame]
    max_driver_rows: int
    strategy: MergeStrategy = "auto"

    def write(self, rows: Rows, txn: Txn, metadata: Metadata, *, replace: bool) -> Commit:
        """Append rows, or replace the table's rows with them."""
        with _lock_of(self.path):
            state = self.log.state()
            if done := already_done(self.log, state, txn):
                return done
            root = self._direct_root(state)
            if root is None or not fits(rows, state):
                schema, mode = spark_schema(state.metadata.schema_string), "overwrite" if replace else "append"
                delta_connector.write(self.spark, self.path, rows, schema, mode, txn, metadata)
                return self._made_by_spark(txn)
            with writing(self.path):
                if isinstance(rows, pa.Table) and replace:
                    made = commit_contents(self.log, root, state, rows, txn, metadata)
                elif isinstance(rows, pa.Table):
                    made = commit_rows(self.log, root, state, None, rows, txn, metadata)
                else:
                    frame = delta_connector.as_frame(self.spark, rows, spark_schema(state.metadata.schema_string))
                    made = commit_frame(self.log, root, state, frame, txn, metadata, replace=replace)
            return _checkpointed(root, state, made)

    def append_written(self, write: Write, txn: Txn, metadata: Metadata) -> Commit | None:
        """Append the rows of files that `write` creates; `None` if only Spark can write the table."""
        with _lock_of(self.path):
            state = self.log.state()
            if done := already_done(self.log, state, txn):
                return done
            root = self._direct_root(state)
            if root is None:
                return None
            with writing(self.path):
                made = commit_written(self.log, root, state, write, txn, metadata)
            return _checkpointed(root, state, made)

    def apply(self, change: ChangeSet, txn: Txn, metadata: Metadata) -> Commit | None:
        """Remove and add rows; `None` if there is nothing to do."""
        with _lock_of(self.path):
            state = self.log.state()
            if done := already_done(self.log, state, txn):
                return done
            self._check_unmoved(state, change.expected_version)
            if _is_nothing(change.removed) and _is_nothing(change.added):
                return None
            if self.strategy == "delete_insert":
                change = change.without_updates()
            root = None if self.strategy == "merge" else self._direct_root(state)
            if root is None or not marks_rows(state) or not (fits(change.removed, state) and fits(change.added, state)):
                return self._apply_by_spark(state, change, txn, metadata)
            try:
                with writing(self.path):
                    made = self._apply_directly(root, state, change, txn, metadata)
            except UnreadableVectorError:  # another engine wrote it; Delta's reader knows more formats
                return self._apply_by_spark(state, change, txn, metadata)
            return _checkpointed(root, state, made) if made else None

    def widen(self, schema: StructType, rows: Rows, txn: Txn, metadata: Metadata) -> Commit:
        """Add columns to the table; in the old columns, `rows` equal the table's rows."""
        with _lock_of(self.path):
            state = self.log.state()
            if done := already_done(self.log, state, txn):
                return done
            root = self._direct_root(state)
            if root is None or not (isinstance(rows, pa.Table) or has_types(rows, schema)):
                delta_connector.widen(self.spark, self.path, spark_schema(state.metadata.schema_string), schema)
                delta_connector.write(self.spark, self.path, rows, schema, "overwrite", txn, metadata, is_change=False)
                return self._made_by_spark(txn)
            with writing(self.path):
                made = commit_wider(self.log, root, state, schema, rows, txn, metadata)
            return _checkpointed(root, state, made)

    def _direct_root(self, state: TableState) -> Path | None:
        return None if self.root is None or writing_obstacle(state) else self.root

    def _apply_directly(
        self, root: Path, state: TableState, change: ChangeSet, txn: Txn, metadata: Metadata
    ) -> Commit | None:
        removed, added = change.removed, change.added
        if _is_on_driver(removed) and _is_on_driver(added):
            return commit_rows(self.log, root, state, removed, added, txn, metadata)
        limit = self.max_driver_rows
        return commit_changes(self.spark, self.log, root, state, removed, added, txn, metadata, limit)

    def _apply_by_spark(self, state: TableState, change: ChangeSet, txn: Txn, metadata: Metadata) -> Commit:
        schema = spark_schema(state.metadata.schema_string)
        contents = self.locate(state.version)
        updates = self.strategy != "delete_insert"
        merge.apply(self.spark, self.path, schema, contents, change, txn, metadata, updates=updates)
        made = self._made_by_spark(txn)
        for other in self.log.commits(state.version, made.version - 1):
            # Spark merges into the newest version: another process may have committed after our check.
            if not changes_nothing(other):
                raise MillstreamError(
                    Code.COMMIT_CONFLICT,
                    f"{self.path} was changed by another writer at version {other.version}, before ours {made.version}",
                    hint="refresh with FULL",
                )
        return made

    def _check_unmoved(self, state: TableState, expected: int) -> None:
        """Positions are valid for one version only: no commit may have touched the table's files since."""
        if expected > state.version:
            raise _moved(self.path, f"it is at version {state.version}, before {expected}")
        try:
            since = self.log.commits(expected, state.version)
        except LogGoneError as e:
            raise _moved(self.path, str(e)) from e
        for other in since:
            if not changes_nothing(other):
                raise conflict(self.path, other)

    def _made_by_spark(self, txn: Txn) -> Commit:
        made = self.log.commit_of(txn.app_id, txn.version)
        if made is None:
            raise MillstreamError(Code.REFRESH_FAILED, f"Spark made no commit {txn.version} on {self.path}")
        inserted = made.count("numTargetRowsInserted", "numTargetRowsUpdated")
        deleted = made.count("numTargetRowsDeleted", "numTargetRowsUpdated")
        written = inserted if inserted is not None else made.count("numOutputRows")
        return Commit(made.version, written or 0, deleted or 0)


def _moved(path: str, why: str) -> MillstreamError:
    return MillstreamError(Code.COMMIT_CONFLICT, f"{path} has changed since it was read: {why}", hint="refresh again")


def _checkpointed(root: Path, state: TableState, made: Commit) -> Commit:
    """`made`, after writing the checkpoint that is due after it, if any."""
    if not made.repeated and is_due(state, made.version):
        write_checkpoint(root)
    return made


def _is_on_driver(rows: Rows | None) -> bool:
    return rows is None or isinstance(rows, pa.Table)


def _is_nothing(rows: Rows | None) -> bool:
    return rows is None or (isinstance(rows, pa.Table) and rows.num_rows == 0)
