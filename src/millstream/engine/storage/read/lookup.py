"""Looking up stored rows on the driver by the values of a few columns: only those columns of the files are read.

Spark would decode every column of every row, to return a handful (ADR 6). Often only the places of the rows are needed;
if not, the other columns are read for the rows that were found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.data_file import read_rows
from millstream.engine.storage.files.exact_cast import exactly_typed
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableState
from millstream.engine.storage.read.places import PLACE_COLUMNS, nowhere, placed

if TYPE_CHECKING:
    from millstream.engine.storage.store import DeltaStore

MAX_SCANNED_VALUES = 100_000_000
"""With more values to search, Spark is faster."""
MAX_FOUND = 100_000
"""Passing more rows to Spark takes longer than a scan by Spark."""

# A column is not selective enough if many more stored rows match it than are removed: then try another one.
_MANY, _FEW, _MAX_TRIES = 10, 1_000, 3

Wanted = Mapping[str, pa.Array]
"""Values per column; a row is wanted if it has one of them in each column."""


def has_exact_equality(data_type: pa.DataType) -> bool:
    """Whether equal values of the type have equal bits, so that Spark and Arrow agree on which are equal."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_boolean(data_type)
    )


def is_searchable(state: TableState, num_columns: int) -> bool:
    """Whether this many columns of the table can be searched on the driver."""
    counts = [f.num_records for f in state.files.values()]
    return None not in counts and sum(n or 0 for n in counts) * num_columns <= MAX_SCANNED_VALUES


def look_up(root: Path, state: TableState, schema: pa.Schema, wanted: Wanted, limit: int) -> pa.Table | None:
    """The wanted rows' places and the columns of `wanted`, or `None` if there are more than `limit`.

    Args:
        schema: the table's schema.
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
    """The whole rows at the places that `look_up` returned, with their places."""
    by_file = places.select(list(PLACE_COLUMNS)).group_by(naming.FILE).aggregate([(naming.ROW, "list")])
    work = list(zip(by_file[naming.FILE].to_pylist(), by_file[f"{naming.ROW}_list"], strict=True))

    def read(item: tuple[str, pa.ListScalar]) -> pa.Table:
        path, rows = item[0], np.sort(np.asarray(item[1].values))
        return placed(read_rows(root / path, schema, only=deletion_vector.positions(rows)), path, rows)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return pa.concat_tables([nowhere(schema), *pool.map(read, work)])


def _matches(root: Path, file: DataFile, schema: pa.Schema, wanted: Wanted) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The searched columns of a file, and the positions of wanted live rows."""
    rows = read_rows(root / file.path, schema)  # a plain name: checked by `scan_obstacle`
    hits = np.ones(rows.num_rows, dtype=bool)
    for name, values in wanted.items():
        hits &= np.asarray(pc.is_in(rows[name], value_set=exactly_typed(values, schema.field(name).type)))
    if file.deletion_vector:
        hits[deletion_vector.to_numpy(deletion_vector.read(root, file.deletion_vector))] = False
    return rows, np.flatnonzero(hits)


@dataclass(frozen=True)
class Lookup:
    """A stored table at one version, for looking up rows."""

    store: DeltaStore
    path: str
    version: int

    def by_key(self, wanted: pa.Table, key: Sequence[str]) -> pa.Table | None:
        """The places of the rows that may have the key of a wanted row; None if Spark has to find them."""
        return self._look_up(wanted, [n for n in key if _is_exact(wanted, n)], MAX_FOUND)

    def by_any(self, wanted: pa.Table, columns: Sequence[str]) -> pa.Table | None:
        """The places of the rows that agree with a wanted row in one column, chosen by how selective it is.

        None if Spark has to find them.
        """
        for column in selective_columns(wanted, columns)[:_MAX_TRIES]:
            found = self._look_up(wanted, [column], _MANY * wanted.num_rows + _FEW)
            if found is not None:
                return found
        return None

    def _look_up(self, wanted: pa.Table, columns: Sequence[str], limit: int) -> pa.Table | None:
        values = {n: pc.unique(wanted[n].combine_chunks()) for n in columns}
        return self.store.look_up(self.path, self.version, values, limit) if columns else None


def selective_columns(wanted: pa.Table, columns: Sequence[str]) -> list[str]:
    """The searchable columns, the most selective (those with the most values) first."""
    exact = [n for n in columns if _is_exact(wanted, n)]
    return sorted(exact, key=lambda n: -len(pc.unique(wanted[n])))


def _is_exact(rows: pa.Table, column: str) -> bool:
    return has_exact_equality(rows.schema.field(column).type)


def rows_to_remove(going: pa.Table, found: pa.Table, columns: list[str]) -> pa.Table | None:
    """The rows of a bag to remove, with their places, if exactly as many places were found.

    All rows to remove are stored. So if as many stored rows as rows to remove have a value in the searched column, they
    are the same rows, regardless of their other columns. `None` if other rows share the value.
    """
    (searched,) = set(found.column_names) - set(PLACE_COLUMNS)
    weights = going[naming.WEIGHT].to_numpy()
    rows = going.take(np.repeat(np.arange(going.num_rows), -weights)).sort_by(searched)
    found = found.sort_by(searched)
    if not rows[searched].combine_chunks().equals(exactly_typed(found[searched].combine_chunks(), rows[searched].type)):
        return None
    result = rows.select(columns)
    for name in PLACE_COLUMNS:
        result = result.append_column(name, found[name])
    return result
