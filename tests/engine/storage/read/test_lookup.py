"""Places found by values, against the rows themselves."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DateType, DoubleType, LongType, StringType, StructField, StructType

from kits.storage import KSD, change, direct, next_txn, rows, stored
from millstream import naming
from millstream.engine.storage import DeltaStore
from millstream.engine.storage.files.schema import arrow_schema
from millstream.engine.storage.read import lookup


@pytest.fixture
def store() -> DeltaStore:
    return direct(None)


@pytest.fixture
def path(store: DeltaStore, tmp_path: Path) -> str:
    """Three files, with NULLs, duplicates and dead rows."""
    path = str(tmp_path / "t")
    store.create(path, KSD, stats_columns=["k"])
    store.append(path, rows(*((k, f"s{k % 7}", None) for k in range(100))), next_txn(), {})
    store.append(path, rows((5, "s5", None), (None, "x", None), (5, "other", None)), next_txn(), {})
    store.append(path, rows(*((k, None, None) for k in range(200, 260))), next_txn(), {})
    change(store, path, stored(store, path).slice(10, 20), None)
    return path


def expected(store: DeltaStore, path: str, **wanted: list[Any]) -> set[tuple[Any, ...]]:
    return {
        (*(row[name] for name in wanted), row[naming.FILE], row[naming.ROW])
        for row in stored(store, path).to_pylist()
        if all(row[name] in values for name, values in wanted.items())
    }


@pytest.mark.parametrize(
    "wanted",
    [
        {"k": [5, 15, 50, 230, 999]},
        {"k": [None, 5]},
        {"s": ["s3", None]},
        {"k": [5, None, 12], "s": ["s5", "x"]},
        {"k": []},
    ],
)
def test_places(store: DeltaStore, path: str, wanted: dict[str, list[Any]]) -> None:
    types = {"k": pa.int64(), "s": pa.string()}
    found = store.look_up(path, store.version(path), {n: pa.array(v, types[n]) for n, v in wanted.items()})
    assert found is not None
    places = [tuple(row.values()) for row in found.to_pylist()]
    assert set(places) == expected(store, path, **wanted)
    assert len(places) == len(set(places))


def test_whole_rows_at_places(store: DeltaStore, path: str) -> None:
    found = store.look_up(path, store.version(path), {"k": pa.array([5, 50, 230, None])})
    assert found is not None
    whole = lookup.rows_at(Path(path), arrow_schema(KSD), found)
    wanted = {tuple(r.values()) for r in stored(store, path).to_pylist() if r["k"] in (5, 50, 230, None)}
    assert {tuple(r.values()) for r in whole.to_pylist()} == wanted
    assert whole.num_rows == len(wanted) == 6


def test_left_to_spark(store: DeltaStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version, wanted = store.version(path), {"k": pa.array([5])}
    assert store.look_up(path, version, wanted, limit=2) is None, "three rows are too many"
    assert store.look_up(path, version, wanted, limit=3) is not None
    monkeypatch.setattr(lookup, "MAX_SCANNED_VALUES", 10)
    assert store.look_up(path, version, wanted) is None, "the table is too large"


def test_values_that_are_equal_in_several_ways_are_not_searched(store: DeltaStore, tmp_path: Path) -> None:
    schema = StructType([StructField("x", DoubleType()), StructField("d", DateType())])
    path = str(tmp_path / "doubles")
    store.create(path, schema, stats_columns=[])
    store.append(path, rows((-0.0, dt.date(2024, 1, 1)), schema=schema), next_txn(), {})
    assert store.look_up(path, 1, {"x": pa.array([0.0])}) is None
    found = store.look_up(path, 1, {"d": pa.array([dt.date(2024, 1, 1)])})
    assert found is not None
    assert found.num_rows == 1


def test_an_empty_table(store: DeltaStore, tmp_path: Path) -> None:
    schema = StructType([StructField("k", LongType()), StructField("s", StringType())])
    path = str(tmp_path / "empty")
    store.create(path, schema, stats_columns=[])
    found = store.look_up(path, 0, {"k": pa.array([1])})
    assert found is not None
    assert (found.num_rows, found.column_names) == (0, ["k", naming.FILE, naming.ROW])


def test_values_python_cannot_hold(store: DeltaStore, tmp_path: Path) -> None:
    """They are found all the same, only no file is left out."""
    schema = StructType([StructField("d", DateType()), StructField("k", LongType())])
    path = str(tmp_path / "far")
    store.create(path, schema, stats_columns=["d", "k"])
    far = pa.array([10_000_000], pa.int32()).cast(pa.date32())
    store.append(path, pa.table({"d": far, "k": pa.array([1])}), next_txn(), {})
    found = store.look_up(path, 1, {"d": far})
    assert found is not None
    assert found.num_rows == 1
