"""The direct commit: marks old rows dead, appends new rows and records the changes, in one version of the log.

It costs the same regardless of the table's size, because the file and position of the rows to remove are known: the
refresh had to look up the old rows anyway. See ADR 0003.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.data_file import (
    CHANGE_TYPE,
    UnreadableFileError,
    concatenated,
    conformed,
    read_rows,
    write_changes,
    write_data,
)
from millstream.engine.storage.files.schema import arrow_schema_of
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import CHANGE, DELETE, INSERT, POSTIMAGE, Commit, Txn
from millstream.engine.storage.write.commit import changes_nothing, commit_info, commit_next, keeps_schema, txn_action
from millstream.engine.storage.write.draft import DeadRows, Draft, dead_rows, stats_columns
from millstream.engine.storage.write.fold import to_fold


def commit_rows(
    log: TableLog,
    root: Path,
    state: TableState,
    removed: pa.Table | None,
    added: pa.Table | None,
    txn: Txn,
    metadata: Mapping[str, object],
) -> Commit:
    """Commit rows on the driver as a change of `state`.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` if the table has changed, or a row to remove does not exist.
    """
    schema = arrow_schema_of(state.metadata.schema_string)
    new_rows = conformed(added, schema, added.num_rows) if added is not None else schema.empty_table()
    dead = dead_rows(root, state, removed)
    folded = _folded(root, state, dead, schema, new_rows.num_rows)
    is_append = not dead and not folded
    draft = Draft(root, state)
    with draft.kept_if_committed() as keep:
        for path in folded:
            draft.remove(state.files[path])
        data = concatenated([*folded.values(), new_rows], schema)
        if data.num_rows:
            draft.add_new(write_data(root, data, stats_columns(state)))
        draft.mark({path: bitmap for path, bitmap in dead.items() if path not in folded})
        if not is_append:
            changes = concatenated([_labelled(removed, schema, DELETE), _labelled(added, schema, INSERT)], schema)
            draft.add_changes(write_changes(root, changes))
        metrics = _metrics(removed, added, sum(r.num_rows for r in folded.values()), draft.num_new_files)
        info = commit_info("WRITE" if is_append else "MERGE", state.version, metrics, metadata)
        harmless = keeps_schema if is_append else changes_nothing
        outcome = commit_next(log, root, state, txn, [info, txn_action(txn), *draft.actions], harmless)
        if isinstance(outcome, Commit):
            return outcome
        keep()
    return Commit(outcome, new_rows.num_rows, removed.num_rows if removed is not None else 0)


def commit_contents(
    log: TableLog, root: Path, state: TableState, rows: pa.Table, txn: Txn, metadata: Mapping[str, object]
) -> Commit:
    """Replace the table's rows with rows on the driver.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` if the table has changed.
    """
    schema = arrow_schema_of(state.metadata.schema_string)
    draft = Draft(root, state)
    with draft.kept_if_committed() as keep:
        for old in state.files.values():
            draft.remove(old)
        if rows.num_rows:
            draft.add_new(write_data(root, conformed(rows, schema, rows.num_rows), stats_columns(state)))
        metrics = {"numFiles": draft.num_new_files, "numOutputRows": rows.num_rows}
        info = commit_info("WRITE", state.version, metrics, metadata, mode="Overwrite")
        outcome = commit_next(log, root, state, txn, [info, txn_action(txn), *draft.actions], changes_nothing)
        if isinstance(outcome, Commit):
            return outcome
        keep()
    return Commit(outcome, rows.num_rows)


def _folded(root: Path, state: TableState, dead: DeadRows, schema: pa.Schema, new_rows: int) -> dict[str, pa.Table]:
    """The live rows of the files that this commit folds, by the files' paths."""
    counted = [(f, f.num_records - _num_dead(f, dead)) for f in state.files.values() if f.num_records is not None]
    try:
        return {f.path: _live_rows(root, f, dead.get(f.path), schema) for f in to_fold(counted, new_rows)}
    except UnreadableFileError:
        return {}  # written by another engine in a way that only Spark reads; compaction will fold it


def _num_dead(file: DataFile, dead: DeadRows) -> int:
    now = dead.get(file.path)
    return file.num_dead if now is None else len(now)


def _live_rows(root: Path, file: DataFile, dead: BitMap64 | None, schema: pa.Schema) -> pa.Table:
    gone = dead if dead is not None else deletion_vector.read(root, file.deletion_vector)
    return read_rows(root / file.path, schema, dead=gone)


def _labelled(rows: pa.Table | None, schema: pa.Schema, default: str) -> pa.Table:
    """Rows for a change file: the table's columns and the label of each row in the feed."""
    typed = schema.append(pa.field(CHANGE_TYPE, pa.string()))
    if rows is None:
        return typed.empty_table()
    if CHANGE in rows.column_names:
        labels = rows.column(CHANGE).cast(pa.string()).fill_null(default)
    else:
        labels = pa.repeat(pa.scalar(default), rows.num_rows)
    return conformed(rows, schema, rows.num_rows).append_column(typed.field(CHANGE_TYPE), labels)


def _metrics(removed: pa.Table | None, added: pa.Table | None, copied: int, files: int) -> dict[str, int]:
    updated = 0
    if added is not None and CHANGE in added.column_names:
        updated = pc.sum(pc.equal(added.column(CHANGE), POSTIMAGE)).as_py() or 0
    new = added.num_rows if added is not None else 0
    gone = removed.num_rows if removed is not None else 0
    return change_metrics(new - updated, updated, gone - updated, copied, files)


def change_metrics(inserted: int, updated: int, deleted: int, copied: int, files: int) -> dict[str, int]:
    """Counts under the names that Delta's MERGE uses; `ranges` reads them again."""
    return {
        "numOutputRows": inserted + updated + copied,
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": deleted,
        "numTargetRowsCopied": copied,
        "numFiles": files,
    }
