"""Weighted rows on the driver: signs of change-feed rows, and the sum over equal rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage.model import INSERT, POSTIMAGE
from millstream.engine.storage.schema import is_comparable

WEIGHT_FIELD = pa.field(naming.WEIGHT, pa.int64())


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """All rows with one weight."""
    return rows.append_column(WEIGHT_FIELD, pa.repeat(pa.scalar(weight, pa.int64()), rows.num_rows))


def weighted_by_type(rows: pa.Table, type_column: str) -> pa.Table:
    """Rows of a change feed: inserts and post-images count 1, deletes and pre-images -1."""
    is_new = pc.is_in(rows.column(type_column), value_set=pa.array([INSERT, POSTIMAGE]))
    weights = pc.if_else(is_new, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
    return rows.drop_columns([type_column]).append_column(WEIGHT_FIELD, weights)


def consolidated(zset: pa.Table) -> pa.Table:
    """Equal rows summed into one, weights of zero dropped.

    Rows with nested columns stay as they are: Arrow cannot group by them, and an unconsolidated Z-set is still right.
    """
    columns = [name for name in zset.column_names if name != naming.WEIGHT]
    if not columns or zset.num_rows < 2 or not all(is_comparable(zset.schema.field(c).type) for c in columns):
        return zset
    summed = zset.group_by(columns, use_threads=False).aggregate([(naming.WEIGHT, "sum")])
    summed = summed.rename_columns([*columns, naming.WEIGHT]).select(zset.column_names)
    return summed.filter(pc.not_equal(summed.column(naming.WEIGHT), 0)).cast(zset.schema)
