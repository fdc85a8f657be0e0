"""Weighted rows on the driver: signs of change-feed rows, the sum over equal rows, and the difference of two tables.

Rows are equal here if their bits are: NaN equals NaN, and -0.0 is not 0.0, since a stored table keeps exact values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage.files.exact_cast import exactly
from millstream.engine.storage.files.schema import is_comparable
from millstream.engine.storage.model import INSERT, POSTIMAGE

WEIGHT_FIELD = pa.field(naming.WEIGHT, pa.int64())
_PLACE = f"{naming.RESERVED_PREFIX}place"


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """All rows with one weight."""
    return rows.append_column(WEIGHT_FIELD, pa.repeat(pa.scalar(weight, pa.int64()), rows.num_rows))


def weighted_by_type(rows: pa.Table, type_column: str) -> pa.Table:
    """Rows of a change feed: inserts and post-images count 1, deletes and pre-images -1."""
    is_new = pc.is_in(rows.column(type_column), value_set=pa.array([INSERT, POSTIMAGE]))
    weights = pc.if_else(is_new, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
    return rows.drop_columns([type_column]).append_column(WEIGHT_FIELD, weights)


def consolidated(zset: pa.Table) -> pa.Table:
    """Equal rows summed into one, without rows of weight zero.

    Rows with nested columns stay as they are: Arrow cannot group by them, and an unconsolidated Z-set is still correct.
    """
    columns = [name for name in zset.column_names if name != naming.WEIGHT]
    if not columns or zset.num_rows < 2 or not all(is_comparable(zset.schema.field(c).type) for c in columns):
        return zset
    return netted(zset)


def netted(zset: pa.Table) -> pa.Table:
    """Equal rows summed into one, without rows of weight zero, regardless of the columns' types."""
    names = [name for name in zset.column_names if name != naming.WEIGHT]
    if zset.num_rows == 0 or not names:
        return zset
    keys = comparable(zset, names)
    keys = keys.append_column(_PLACE, pa.array(np.arange(zset.num_rows, dtype=np.int64)))
    keys = keys.append_column(naming.WEIGHT, zset[naming.WEIGHT])
    columns = [name for name in keys.column_names if name not in (_PLACE, naming.WEIGHT)]
    summed = keys.group_by(columns, use_threads=False).aggregate([(naming.WEIGHT, "sum"), (_PLACE, "min")])
    summed = summed.filter(pc.not_equal(summed[f"{naming.WEIGHT}_sum"], 0))
    rows = zset.take(summed[f"{_PLACE}_min"])
    at = zset.column_names.index(naming.WEIGHT)
    return rows.set_column(at, zset.schema.field(at), summed[f"{naming.WEIGHT}_sum"].cast(pa.int64()))


def difference(new: pa.Table, old: pa.Table) -> pa.Table:
    """The net change that leads from `old` to `new`, two tables with the same columns."""
    return netted(pa.concat_tables([weighted(new, 1), weighted(exactly(old.select(new.column_names), new.schema), -1)]))


def comparable(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Columns that Arrow can group by, equal exactly where the given ones are: nested values become numbers."""
    arrays: list[pa.Array | pa.ChunkedArray] = []
    for name in columns:
        column = rows[name]
        if not is_comparable(column.type):
            codes: dict[str, int] = {}
            # the text of a value shows all its bits, including nested floats
            column = pa.array([codes.setdefault(repr(value), len(codes)) for value in column.to_pylist()], pa.int64())
        arrays.append(column)
    return pa.table(arrays, names=list(columns))
