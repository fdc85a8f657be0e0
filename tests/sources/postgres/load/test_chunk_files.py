"""Chunks as Parquet files: bounded in memory, with a new name each time, and none for no rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.load import chunk_files
from millstream.sources.postgres.load.chunk_files import write_file

SCHEMA = pa.schema([("id", pa.int64())])


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA)


def test_rows_are_written_in_groups_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_files, "GROUP_BYTES", 16)
    written = write_file(tmp_path, [batch(1), batch(2), batch(), batch(3, 4, 5), batch(6)], SCHEMA)
    assert written is not None
    name, rows = written
    assert rows == 6
    file = pq.ParquetFile(tmp_path / name)
    assert [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] == [2, 3, 1]
    assert file.read()["id"].to_pylist() == [1, 2, 3, 4, 5, 6]


def test_attempts_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = (write_file(tmp_path, [batch(1)], SCHEMA) for _ in range(2))
    assert first != second
    assert len(list(tmp_path.iterdir())) == 2


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    assert write_file(tmp_path, [], SCHEMA) is None
    assert write_file(tmp_path, [batch(), batch()], SCHEMA) is None
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(MillstreamError) as caught:
        write_file(tmp_path / "gone", [batch(1)], SCHEMA)
    assert caught.value.code is Code.LAKE_UNWRITABLE
