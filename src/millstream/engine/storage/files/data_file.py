"""Parquet files as Spark would write them, by pyarrow, with statistics that never make a reader miss a row.

Minima and maxima are written for integers, strings and dates only. Delta's statistics are JSON: a decimal or a double
would be read back rounded, a timestamp truncated to milliseconds, NaN not at all, and a reader that skips files by
these bounds would then miss rows.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from millstream.engine.storage.files.deletion_vector import to_numpy
from millstream.engine.storage.files.exact_cast import exactly_typed
from millstream.engine.storage.location import CHANGE_DIRECTORY
from millstream.engine.storage.log.actions import Json

CHANGE_TYPE = "_change_type"
_STRING_STATS_MAX = 32
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date(1583, 1, 1) - _EPOCH).days, (date.max - _EPOCH).days  # where all calendars agree
_OPTIONS: dict[str, Any] = {
    "compression": "snappy",
    "store_schema": False,
    "coerce_timestamps": "us",
    "store_decimal_as_integer": True,
}
_LEGACY_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class UnreadableFileError(Exception):
    """A data file is missing, or written in a way that only Spark reads correctly."""


def has_bounds(data_type: pa.DataType) -> bool:
    """Whether minima and maxima of the type survive as JSON."""
    return bool(pa.types.is_signed_integer(data_type) or pa.types.is_string(data_type) or pa.types.is_date32(data_type))


def write_data(root: Path, rows: pa.Table, stats_columns: Sequence[str]) -> Json:
    """Write a data file; returns the value of its `add` action."""
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    size = _write(root / name, rows)
    return {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(statistics(rows, stats_columns), separators=(",", ":"), ensure_ascii=False),
    }


def write_changes(root: Path, rows: pa.Table) -> Json:
    """Write a change file, `rows` with their `_change_type`; returns the value of its `cdc` action."""
    name = f"{CHANGE_DIRECTORY}/cdc-00000-{uuid.uuid4()}.c000.snappy.parquet"
    (root / CHANGE_DIRECTORY).mkdir(exist_ok=True)
    return {"path": name, "partitionValues": {}, "size": _write(root / name, rows), "dataChange": False}


def _write(file: Path, rows: pa.Table) -> int:
    pq.write_table(rows, file, row_group_size=1 << 20, **_OPTIONS)
    return os.path.getsize(file)


def open_writer(file: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer for rows that arrive in batches: each batch becomes a row group."""
    return pq.ParquetWriter(file, schema, **_OPTIONS)


def statistics(rows: pa.Table, columns: Sequence[str]) -> Json:
    """Row count, and null counts and bounds of the columns whose type allows them."""
    minima: dict[str, object] = {}
    maxima: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name in columns:
        column = rows.column(name)
        if not has_bounds(column.type):
            continue
        nulls[name] = column.null_count
        bounds = pc.min_max(column)
        low, high = _bound(bounds["min"]), _bound(bounds["max"])
        if low is not None and high is not None:
            minima[name], maxima[name] = low, high
    return {
        "numRecords": rows.num_rows,
        "minValues": minima,
        "maxValues": maxima,
        "nullCount": nulls,
        "tightBounds": True,
    }


def _bound(scalar: pa.Scalar) -> int | str | None:
    if not scalar.is_valid:
        return None
    if pa.types.is_date32(scalar.type):
        days = scalar.cast(pa.int32()).as_py()
        return str(_EPOCH + timedelta(days)) if _FIRST_DAY <= days <= _LAST_DAY else None
    return bound_as_json(scalar.as_py())


def bound_as_json(value: object) -> int | str | None:
    """A minimum or maximum for the log; `None` if it cannot be written unchanged."""
    # Delta truncates long strings and must round the maximum up: omit the bound instead.
    if isinstance(value, str):
        return value if len(value) <= _STRING_STATS_MAX else None
    if isinstance(value, date):
        return str(value) if value >= _EPOCH + timedelta(_FIRST_DAY) else None
    return value if isinstance(value, int) else None


def loosened(stats: Json) -> str | None:
    """The statistics of a file that got a deletion vector: its bounds are valid, but may no longer be tight."""
    return json.dumps({**stats, "tightBounds": False}, separators=(",", ":"), ensure_ascii=False) if stats else None


def read_rows(file: Path, schema: pa.Schema, *, dead: BitMap64 | None = None, only: BitMap64 | None = None) -> pa.Table:
    """The rows of a Parquet file as `schema`, without the dead ones, or only those at some positions.

    A column that the file lacks was added to the table later: its values are NULL.
    """
    try:
        table, rows = _read(file, schema)
        if only is not None:
            table, rows = table.take(pa.array(to_numpy(only))), len(only)
        elif dead:
            keep = np.ones(rows, dtype=bool)
            keep[to_numpy(dead)] = False
            table, rows = table.filter(pa.array(keep)), int(keep.sum())
        return conformed(table, schema, rows)
    except FileNotFoundError as e:
        raise UnreadableFileError(f"{file.name} does not exist") from e
    except pa.ArrowException as e:
        raise UnreadableFileError(f"{file.name}: {e}") from e


def _read(file: Path, schema: pa.Schema) -> tuple[pa.Table, int]:
    with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as source:
        if any(key in (source.metadata.metadata or {}) for key in _LEGACY_CALENDAR):
            raise UnreadableFileError(f"{file.name} uses the Julian calendar")
        present = {name.lower(): name for name in source.schema_arrow.names}
        wanted = [present[f.name.lower()] for f in schema if f.name.lower() in present]
        return source.read(columns=wanted, use_threads=False), source.metadata.num_rows


def conformed(table: pa.Table, schema: pa.Schema, num_rows: int) -> pa.Table:
    """`table` with exactly the columns and types of `schema`."""
    present = {name.lower(): i for i, name in enumerate(table.column_names)}
    columns = []
    for field in schema:
        index = present.get(field.name.lower())
        if index is None:
            columns.append(pa.nulls(num_rows, field.type))
        else:
            column = table.column(index)
            columns.append(exactly_typed(column, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def concatenated(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """All rows, in order; an empty table of `schema` if there are none."""
    parts = [t for t in tables if t.num_rows]
    return pa.concat_tables(parts) if parts else schema.empty_table()
