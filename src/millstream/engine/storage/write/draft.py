"""A direct commit in preparation: its actions, and the files to delete again if it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from millstream import naming
from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.data_file import loosened
from millstream.engine.storage.files.schema import arrow_schema_of
from millstream.engine.storage.log.actions import DataFile, Json
from millstream.engine.storage.log.table_log import TableState
from millstream.errors import Code, MillstreamError

DeadRows = Mapping[str, BitMap64]
"""The dead rows of files, by their path: earlier ones and those that a commit adds."""


@dataclass
class Draft:
    """Actions collected for one commit on `state`."""

    root: Path
    state: TableState
    actions: list[Json] = field(default_factory=list)
    _written: list[str] = field(default_factory=list)

    def add_new(self, action: Json) -> None:
        """Add a data file that was written for this commit."""
        self._written.append(action["path"])
        self.actions.append({"add": action})

    def add_changes(self, action: Json) -> None:
        """Add a change file that was written for this commit."""
        self._written.append(action["path"])
        self.actions.append({"cdc": action})

    def remove(self, file: DataFile, *, data_change: bool = True) -> None:
        """Remove a live file."""
        self.actions.append({"remove": _removal(file, data_change)})

    def mark(self, dead: DeadRows) -> None:
        """Give each file its new deletion vector; remove a file without live rows instead."""
        vectors: dict[str, BitMap64] = {}
        for path, bitmap in dead.items():
            file = self.state.files[path]
            self.remove(file)
            if file.num_records is None or len(bitmap) < file.num_records:
                vectors[path] = bitmap
        for path, descriptor in deletion_vector.write(self.root, vectors).items():
            if name := deletion_vector.stored_name(descriptor):
                self._written.append(name)
            file = self.state.files[path]
            action = {**file.action, "dataChange": True, "deletionVector": descriptor}
            if stats := loosened(file.stats):
                action["stats"] = stats
            self.actions.append({"add": action})

    @property
    def num_new_files(self) -> int:
        """Files written for this commit."""
        return len(self._written)

    @contextmanager
    def kept_if_committed(self) -> Iterator[Callable[[], None]]:
        """Delete the written files at the end, unless the function that it yields was called."""
        committed = False

        def keep() -> None:
            nonlocal committed
            committed = True

        try:
            yield keep
        finally:
            if not committed:
                for name in self._written:
                    (self.root / name).unlink(missing_ok=True)


def _removal(file: DataFile, data_change: bool) -> Json:
    kept = {k: v for k, v in file.action.items() if k in ("partitionValues", "size", "stats", "tags", "deletionVector")}
    return {
        "path": file.path,
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        **kept,
    }


def stats_columns(state: TableState) -> Sequence[str]:
    """The columns for which bounds are written, from the table's property."""
    listed = state.metadata.configuration.get("delta.dataSkippingStatsColumns", "")
    schema = arrow_schema_of(state.metadata.schema_string)
    return [name for name in (part.strip().strip("`") for part in listed.split(",")) if name in schema.names]


def dead_rows(root: Path, state: TableState, positions: pa.Table | None) -> dict[str, BitMap64]:
    """All dead rows of each file that loses rows, including earlier ones.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` if a position is not that of a live row.
    """
    if positions is None or not positions.num_rows:
        return {}
    files = pc.dictionary_encode(positions.column(naming.FILE)).combine_chunks()
    rows, codes = positions.column(naming.ROW).to_numpy(), files.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(files.dictionary) + 1))
    dead: dict[str, BitMap64] = {}
    for code, name in enumerate(files.dictionary.to_pylist()):
        new = rows[order[starts[code] : starts[code + 1]]]
        file = state.files.get(name)
        if file is None:
            raise _stale(f"{name} is not in the table")
        before = deletion_vector.read(root, file.deletion_vector)
        now = before | deletion_vector.positions(new)
        if len(now) != len(before) + len(new):
            raise _stale(f"a row of {name} is removed twice")
        if file.num_records is not None and now.max() >= file.num_records:
            raise _stale(f"{name} has no row {now.max()}")
        dead[name] = now
    return dead


def _stale(why: str) -> MillstreamError:
    return MillstreamError(
        Code.COMMIT_CONFLICT,
        f"the rows to remove are not rows of the table's current version: {why}",
        hint="refresh again",
    )
