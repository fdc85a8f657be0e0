"""Files that others write into a directory become a commit, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millstream.engine.storage import DeltaStore, Txn
from millstream.engine.storage.files.data_file import open_writer
from millstream.errors import Code, MillstreamError
from millstream.settings import Settings

FIELDS = StructType([StructField("id", LongType()), StructField("name", StringType())])
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def store(path: str) -> DeltaStore:
    made = DeltaStore(None, Settings())  # type: ignore[arg-type]
    made.create(path, FIELDS, stats_columns=["id"])
    return made


def write(directory: Path, name: str, *ids: int) -> Path:
    file = directory / name
    with open_writer(file, SCHEMA) as writer:
        for some in ids:
            writer.write_table(pa.table({"id": [some], "name": [f"n{some}"]}, SCHEMA))
    return file


def test_only_the_files_that_are_named_are_committed(store: DeltaStore, path: str) -> None:
    def written(directory: Path) -> Sequence[Path]:
        write(directory, "part-failed.parquet", 99)
        return [write(directory, "part-a.parquet", 1, 2), write(directory, "part-b.parquet", 3)]

    made = store.append_written(path, written, Txn("load", 0), {"by": "others"})
    assert made is not None
    assert made.rows_written == 3
    rows = store.rows(path, made.version, 100)
    assert rows is not None
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]
    assert store.snapshot(path, made.version).num_rows == 3
    assert sorted(p.suffix for p in Path(path).iterdir()) == ["", ".parquet", ".parquet"]
    stats = [file.stats for file in store._state(path, None).files.values()]
    bounds = sorted((s["minValues"]["id"], s["maxValues"]["id"]) for s in stats)
    assert bounds == [(1, 2), (3, 3)]


def test_a_transaction_is_written_once(store: DeltaStore, path: str) -> None:
    first = store.append_written(path, lambda d: [write(d, "part-a.parquet", 1)], Txn("load", 0), {})
    again = store.append_written(path, lambda d: [write(d, "part-a.parquet", 1)], Txn("load", 0), {})
    assert first is not None
    assert again is not None
    assert (again.version, again.repeated) == (first.version, True)


def test_nothing_is_left_of_a_writer_that_fails(store: DeltaStore, path: str) -> None:
    def fail(directory: Path) -> Sequence[Path]:
        write(directory, "part-a.parquet", 1)
        raise MillstreamError(Code.SNAPSHOT_LOST, "gone")

    with pytest.raises(MillstreamError):
        store.append_written(path, fail, Txn("load", 0), {})
    assert [p.name for p in Path(path).iterdir()] == ["_delta_log"]
    assert store.version(path) == 0


def test_files_without_rows_are_left_out(store: DeltaStore, path: str) -> None:
    made = store.append_written(path, lambda d: [write(d, "part-a.parquet")], Txn("load", 0), {})
    assert made is not None
    assert store.snapshot(path, made.version).num_rows == 0


def test_tables_that_only_spark_writes_are_left_to_it(store: DeltaStore, path: str) -> None:
    writer = replace(store._writer(path), root=None)
    assert writer.append_written(lambda _: [], Txn("load", 0), {}) is None
