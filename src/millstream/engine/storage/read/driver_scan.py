"""Reading a small table on the driver: no file index, no scan to plan, no job.

The rows become a relation whose size Spark knows exactly, so that it also plans joins better.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.data_file import read_rows
from millstream.engine.storage.location import file_in_table
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableState
from millstream.engine.storage.read.places import nowhere, placed

MAX_ROWS = 5_000
"""Passing more rows to Spark takes longer than planning a scan."""
_MAX_FILES = 32


def fits_driver(state: TableState) -> bool:
    """Whether the table is small enough, according to the log."""
    live = [f.num_live for f in state.files.values()]
    return len(live) <= _MAX_FILES and None not in live and sum(n for n in live if n is not None) <= MAX_ROWS


def driver_scan(root: Path, state: TableState, schema: pa.Schema, *, located: bool) -> pa.Table:
    """The live rows, with `naming.FILE` and `naming.ROW` if `located`."""
    parts = [_live_rows(root, file, schema, located=located) for file in state.files.values()]
    return pa.concat_tables([nowhere(schema) if located else schema.empty_table(), *parts])


def _live_rows(root: Path, file: DataFile, schema: pa.Schema, *, located: bool) -> pa.Table:
    path = file_in_table(root, file.path)
    assert path is not None, "checked by scan_obstacle"
    dead = deletion_vector.read(root, file.deletion_vector) if file.deletion_vector else None
    rows = read_rows(path, schema, dead=dead)
    if not located:
        return rows
    places = np.arange(rows.num_rows + (len(dead) if dead else 0), dtype=np.int64)
    if dead:
        places = np.delete(places, deletion_vector.to_numpy(dead))
    return placed(rows, file.path, places)
