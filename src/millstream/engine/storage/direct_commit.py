"""The direct commit: old rows are marked dead, new rows appended, changes written down, in one version of the log.

It costs the same whatever the table's size, because the rows to remove are known by file and position: the refresh had
to look the old rows up anyway. See ADR 0003.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from millstream import naming
from millstream.engine.storage import deletion_vector
from millstream.engine.storage.actions import DataFile, Json
from millstream.engine.storage.commit import changes_nothing, commit_info, commit_next, keeps_schema, txn_action
from millstream.engine.storage.data_file import (
    CHANGE_TYPE,
    concatenated,
    conformed,
    loosened,
    read_rows,
    write_changes,
    write_data,
)
from millstream.engine.storage.fold import to_fold
from millstream.engine.storage.model import CHANGE, DELETE, INSERT, POSTIMAGE, Commit, Txn
from millstream.engine.storage.schema import arrow_schema_of
from millstream.engine.storage.table_log import TableLog, TableState
from millstream.errors import Code, MillstreamError


@dataclass
class _Draft:
    """The actions of a commit in the making, and the files to delete if it is not made."""

    actions: list[Json] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def add(self, action: Json) -> None:
        self.actions.append({"add": action})

    def remove(self, file: DataFile) -> None:
        self.actions.append({"remove": removal(file)})

    def discard(self, root: Path) -> None:
        for name in self.written:
            (root / name).unlink(missing_ok=True)


def commit_rows(
    log: TableLog,
    root: Path,
    state: TableState,
    removed: pa.Table | None,
    added: pa.Table | None,
    txn: Txn,
    metadata: Mapping[str, object],
) -> Commit:
    """Commit rows that are on the driver onto `state`.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` where the table moved on, or a row to remove is not there.
    """
    schema = arrow_schema_of(state.metadata.schema_string)
    new_rows = conformed(added, schema, added.num_rows) if added is not None else schema.empty_table()
    dead = _dead_rows(log.path, root, state, removed)
    folded = _files_to_fold(state, dead, new_rows.num_rows)
    is_append = not dead and not folded
    draft = _Draft()
    copied = 0
    try:
        for file in folded:
            draft.remove(file)
        if new_rows.num_rows or folded:
            old_rows = [_live_rows(root, f, dead.get(f.path), schema) for f in folded]
            copied = sum(rows.num_rows for rows in old_rows)
            data = concatenated([*old_rows, new_rows], schema)
            if data.num_rows:
                draft.add(_written(draft, write_data(root, data, stats_columns(state))))
        folded_paths = {f.path for f in folded}
        _mark(root, state, {p: b for p, b in dead.items() if p not in folded_paths}, draft)
        if not is_append:
            changes = concatenated([_labelled(removed, schema, DELETE), _labelled(added, schema, INSERT)], schema)
            draft.actions.append({"cdc": _written(draft, write_changes(root, changes))})
        metrics = _metrics(removed, added, copied, len(draft.written))
        info = commit_info("WRITE" if is_append else "MERGE", state.version, metrics, metadata)
        harmless = keeps_schema if is_append else changes_nothing
        outcome = commit_next(log, root, state, txn, [info, txn_action(txn), *draft.actions], harmless)
    except BaseException:
        draft.discard(root)
        raise
    if isinstance(outcome, Commit):
        draft.discard(root)
        return outcome
    return Commit(outcome, new_rows.num_rows, removed.num_rows if removed is not None else 0)


def stats_columns(state: TableState) -> Sequence[str]:
    """The columns to write bounds of, as the table's property names them."""
    listed = state.metadata.configuration.get("delta.dataSkippingStatsColumns", "")
    schema = arrow_schema_of(state.metadata.schema_string)
    return [name for name in (part.strip().strip("`") for part in listed.split(",")) if name in schema.names]


def removal(file: DataFile, *, data_change: bool = True) -> Json:
    """The value of a `remove` action for a live file."""
    kept = {k: v for k, v in file.action.items() if k in ("partitionValues", "size", "stats", "tags", "deletionVector")}
    return {
        "path": file.path,
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        **kept,
    }


def _written(draft: _Draft, action: Json) -> Json:
    draft.written.append(action["path"])
    return action


def _dead_rows(path: str, root: Path, state: TableState, removed: pa.Table | None) -> dict[str, BitMap64]:
    """All dead rows of each file that loses some, earlier ones included."""
    if removed is None or not removed.num_rows:
        return {}
    files = pc.dictionary_encode(removed.column(naming.FILE).combine_chunks())
    rows = removed.column(naming.ROW).to_numpy()
    codes = files.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(files.dictionary) + 1))
    dead: dict[str, BitMap64] = {}
    for code, name in enumerate(files.dictionary.to_pylist()):
        marked = rows[order[starts[code] : starts[code + 1]]]
        file = state.files.get(name)
        if file is None:
            raise _stale(path, f"{name} is not in the table")
        before = deletion_vector.read(root, file.deletion_vector)
        now = before | deletion_vector.positions(marked)
        if len(now) != len(before) + len(marked):
            raise _stale(path, f"a row of {name} is removed twice")
        if file.num_records is not None and now.max() >= file.num_records:
            raise _stale(path, f"{name} has no row {now.max()}")
        dead[name] = now
    return dead


def _stale(path: str, why: str) -> MillstreamError:
    return MillstreamError(
        Code.COMMIT_CONFLICT, f"the rows to remove from {path} are not those of its current version: {why}"
    )


def _files_to_fold(state: TableState, dead: Mapping[str, BitMap64], new_rows: int) -> list[DataFile]:
    live = []
    for file in state.files.values():
        if file.num_records is not None:
            gone = dead.get(file.path)
            live.append((file, file.num_records - (len(gone) if gone is not None else file.num_dead)))
    return to_fold(live, new_rows)


def _live_rows(root: Path, file: DataFile, dead: BitMap64 | None, schema: pa.Schema) -> pa.Table:
    gone = dead if dead is not None else deletion_vector.read(root, file.deletion_vector)
    return read_rows(root / file.path, schema, dead=gone)


def _mark(root: Path, state: TableState, dead: Mapping[str, BitMap64], draft: _Draft) -> None:
    """Give each file its new deletion vector; a file without a live row goes away instead."""
    marked: dict[str, BitMap64] = {}
    for path, bitmap in dead.items():
        file = state.files[path]
        draft.remove(file)
        if file.num_records is None or len(bitmap) < file.num_records:
            marked[path] = bitmap
    for path, descriptor in deletion_vector.write(root, marked).items():
        if name := deletion_vector.stored_name(descriptor):
            draft.written.append(name)
        file = state.files[path]
        action = {**file.action, "dataChange": True, "deletionVector": descriptor}
        if stats := loosened(file.stats):
            action["stats"] = stats
        draft.add(action)


def _labelled(rows: pa.Table | None, schema: pa.Schema, default: str) -> pa.Table:
    """Rows for a change file: the table's columns and how the feed shall call each."""
    typed = schema.append(pa.field(CHANGE_TYPE, pa.string()))
    if rows is None:
        return typed.empty_table()
    if CHANGE in rows.column_names:
        labels = rows.column(CHANGE).cast(pa.string()).fill_null(default)
    else:
        labels = pa.repeat(pa.scalar(default), rows.num_rows)
    return conformed(rows, schema, rows.num_rows).append_column(CHANGE_TYPE, labels)


def _metrics(removed: pa.Table | None, added: pa.Table | None, copied: int, files: int) -> dict[str, int]:
    updated = 0
    if added is not None and CHANGE in added.column_names:
        updated = pc.sum(pc.equal(added.column(CHANGE), POSTIMAGE)).as_py() or 0
    new = added.num_rows if added is not None else 0
    gone = removed.num_rows if removed is not None else 0
    return {
        "numOutputRows": new + copied,
        "numTargetRowsInserted": new - updated,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": gone - updated,
        "numTargetRowsCopied": copied,
        "numFiles": files,
    }
