"""Stored rows by the values of a few columns, found on the driver: only those columns of the files are read.

Spark would decode every column of every row, to hand over a handful (ADR 6). The places are often all that is wanted,
and else the other columns are read where there was a hit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage import deletion_vector
from millstream.engine.storage.actions import DataFile
from millstream.engine.storage.data_file import read_rows
from millstream.engine.storage.exact_cast import exactly_typed
from millstream.engine.storage.places import PLACE_COLUMNS, nowhere, placed
from millstream.engine.storage.table_log import TableState

MAX_SCANNED_VALUES = 100_000_000
"""With more values to look through, Spark has more hands."""
MAX_FOUND = 100_000
"""Handing over more rows takes longer than a scan by Spark."""

Wanted = Mapping[str, pa.Array]
"""Values per column; a row is wanted that has one of them in each."""


def has_exact_equality(data_type: pa.DataType) -> bool:
    """Whether equal values of the type have equal bits, so that Spark and Arrow agree which are equal."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_boolean(data_type)
    )


def is_searchable(state: TableState, num_columns: int) -> bool:
    """Whether so many columns of the table can be looked through on the driver."""
    counts = [f.num_records for f in state.files.values()]
    return None not in counts and sum(n or 0 for n in counts) * num_columns <= MAX_SCANNED_VALUES


def find(root: Path, state: TableState, schema: pa.Schema, wanted: Wanted, limit: int) -> pa.Table | None:
    """The wanted rows' places and the columns of `wanted`, or `None` if they are more than `limit`.

    Args:
        schema: that of the table.
    """
    narrow = pa.schema([schema.field(name) for name in wanted])
    parts: list[pa.Table] = [nowhere(narrow)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (rows, places) in zip(
            state.files.values(),
            pool.map(lambda file: _matches(root, file, narrow, wanted), state.files.values()),
            strict=True,
        ):
            limit -= len(places)
            if limit < 0:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            parts.append(placed(rows.take(pa.array(places)), file.path, places))
    return pa.concat_tables(parts)


def rows_at(root: Path, schema: pa.Schema, places: pa.Table) -> pa.Table:
    """The whole rows at places `find` gave, with their places."""
    by_file = places.select(list(PLACE_COLUMNS)).group_by(naming.FILE).aggregate([(naming.ROW, "list")])
    work = list(zip(by_file[naming.FILE].to_pylist(), by_file[f"{naming.ROW}_list"], strict=True))

    def read(item: tuple[str, pa.ListScalar]) -> pa.Table:
        path, rows = item[0], np.sort(np.asarray(item[1].values))
        return placed(read_rows(root / path, schema, only=deletion_vector.positions(rows)), path, rows)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return pa.concat_tables([nowhere(schema), *pool.map(read, work)])


def _matches(root: Path, file: DataFile, schema: pa.Schema, wanted: Wanted) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The searched columns of a file, and where a wanted live row lies."""
    rows = read_rows(root / file.path, schema)  # a plain name: `scan_obstacle` has looked
    hits = np.ones(rows.num_rows, dtype=bool)
    for name, values in wanted.items():
        hits &= np.asarray(pc.is_in(rows[name], value_set=exactly_typed(values, schema.field(name).type)))
    if file.deletion_vector:
        hits[deletion_vector.to_numpy(deletion_vector.read(root, file.deletion_vector))] = False
    return rows, np.flatnonzero(hits)
