from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructField, StructType

from kits.storage import direct, next_txn, rows
from millstream.engine.storage.log.table_log import TableState
from millstream.engine.storage.read.pruning import Among, pruned

SCHEMA = StructType(
    [
        StructField("k", LongType()),
        StructField("s", StringType()),
        StructField("d", DateType()),
        StructField("x", DecimalType(10, 2)),
    ]
)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> TableState:
    """Four files: keys 0-9 in 2024, keys 10-19 in 2025, one with nothing but NULLs, one with a string too long."""
    store, path = direct(None), str(Path(tmp_path_factory.mktemp("pruning")) / "t")
    store.create(path, SCHEMA, stats_columns=SCHEMA.names)
    for first, year in ((0, 2024), (10, 2025)):
        values = ((k, f"ä{k:02d}", dt.date(year, 1, 1 + k % 10), None) for k in range(first, first + 10))
        store.append(path, rows(*values, schema=SCHEMA), next_txn(), {})
    store.append(path, rows((None, None, None, None), schema=SCHEMA), next_txn(), {})
    store.append(path, rows((99, "x" * 100, dt.date(1066, 10, 14), None), schema=SCHEMA), next_txn(), {})
    return store._state(path, None)


@pytest.mark.parametrize(
    ("among", "kept"),
    [
        ({"k": [3, 4]}, [0]),
        ({"k": [9, 10]}, [0, 1]),
        ({"k": [-1, 20]}, []),
        ({"k": []}, []),
        ({"k": [None]}, [2]),
        ({"k": [15, None]}, [1, 2]),
        ({"s": ["ä15"]}, [1, 3]),
        ({"s": ["z"]}, [3]),
        ({"d": [dt.date(2024, 1, 5)]}, [0, 3]),
        ({"k": [3], "d": [dt.date(2025, 1, 5)]}, []),
        ({"x": [1]}, [0, 1, 2, 3]),
        ({"unknown": [1]}, [0, 1, 2, 3]),
    ],
)
def test_files_that_may_hold_a_row(state: TableState, among: Among, kept: list[int]) -> None:
    files = list(state.files)
    assert list(pruned(state, among).files) == [files[i] for i in kept]
