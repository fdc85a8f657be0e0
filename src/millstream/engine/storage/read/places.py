"""Rows with their place, file and row number: `naming.FILE` and `naming.ROW`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream import naming

PLACE_COLUMNS = (naming.FILE, naming.ROW)


def placed(rows: pa.Table, file: str, positions: npt.NDArray[np.int64]) -> pa.Table:
    """Rows of one file, with their places in it."""
    rows = rows.append_column(naming.FILE, pa.repeat(pa.scalar(file, pa.string()), rows.num_rows))
    return rows.append_column(naming.ROW, pa.array(positions, pa.int64()))


def nowhere(schema: pa.Schema) -> pa.Table:
    """No rows, with the columns that `placed` returns."""
    return placed(schema.empty_table(), "", np.array([], np.int64))
