"""Skipping files that cannot contain a row of interest, by the bounds in the log.

Only bounds of integers, strings and dates are used: those of decimals, doubles and timestamps may be rounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ByteType, DataType, DateType, IntegerType, LongType, ShortType, StringType, StructType

from millstream.engine.storage.files.schema import spark_schema
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableState

Key = int | str | date | None
Among = Mapping[str, Sequence[Key]]
"""Values per column; a row is of interest only if it has one of them in each column."""

_ORDERED: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType, StringType, DateType)


def comparable(wanted: Mapping[str, pa.Array]) -> Among:
    """The values to compare with bounds, without columns whose values Python cannot represent."""
    among: dict[str, Sequence[Key]] = {}
    for name, values in wanted.items():
        if pa.types.is_integer(values.type) or pa.types.is_string(values.type) or pa.types.is_date32(values.type):
            with suppress(OverflowError, ValueError):  # a date after 9999, a string that is not valid UTF-8
                among[name] = values.to_pylist()
    return among


def pruned(state: TableState, among: Among) -> TableState:
    """`state` without the files that contain no row of interest."""
    schema = spark_schema(state.metadata.schema_string)
    wanted = [(name, *_sorted(values)) for name, values in among.items() if _is_ordered(schema, name)]
    files = {
        path: file
        for path, file in state.files.items()
        if all(_may_hold(file, name, values, has_null) for name, values, has_null in wanted)
    }
    return replace(state, files=files)


def _is_ordered(schema: StructType, name: str) -> bool:
    return name in schema.names and type(schema[name].dataType) in _ORDERED


def _sorted(values: Sequence[Key]) -> tuple[list[Any], bool]:
    """The values in Spark's order (strings by their bytes), and whether there is a NULL among them."""
    present = [v for v in values if v is not None]
    texts = [str(v).encode() for v in present if not isinstance(v, int)]
    numbers = [v for v in present if isinstance(v, int)]
    return (sorted(texts) if texts else sorted(numbers)), len(present) < len(values)


def _may_hold(file: DataFile, name: str, values: list[Any], has_null: bool) -> bool:
    stats = file.stats
    low, high = stats.get("minValues", {}).get(name), stats.get("maxValues", {}).get(name)
    nulls: int | None = stats.get("nullCount", {}).get(name)
    if nulls is None or (has_null and nulls > 0):
        return True
    if low is None or high is None:
        return nulls != file.num_records
    at = bisect_left(values, _ordered(low))
    return at < len(values) and bool(values[at] <= _ordered(high))


def _ordered(bound: int | str) -> Any:
    return bound if isinstance(bound, int) else bound.encode()
