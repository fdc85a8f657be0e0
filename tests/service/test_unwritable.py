"""A lake that cannot be written, and a disk that is full: a coded error, the old contents, and nothing half-made.

Root may write everywhere, so the tests give up that right for the length of the attempt. A full disk is a limit on the
size of files, which the operating system enforces in the same place.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from kits.lake import Lake, bag, open_lake
from millstream import Action, Code, MillstreamError, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOBODY = 65534
UNWRITABLE = {Code.LAKE_UNWRITABLE, Code.CATALOG_FAILED, Code.CATALOG_UNAVAILABLE}
SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that anybody may enter; pytest's own are closed to all but their owner."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-test-"))
    directory.chmod(0o755)
    yield directory / "lake"
    shutil.rmtree(directory)


@contextmanager
def read_only(directory: Path, lake: Path | None = None) -> Iterator[None]:
    """Nothing below the directory can be written by this process, all else in the lake can."""
    paths = [directory, *directory.rglob("*")]
    others = [p for p in (lake, *lake.rglob("*")) if p not in paths] if lake is not None else []
    modes = {path: path.stat().st_mode for path in (*paths, *others)}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in others:
        path.chmod(0o777 if path.is_dir() else 0o666)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path, mode in modes.items():
            if path.exists():
                path.chmod(mode)


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused() -> pytest.RaisesExc[MillstreamError]:
    return pytest.raises(MillstreamError, check=lambda e: e.code in UNWRITABLE and bool(e.hint))


@pytest.fixture
def lake(spark: SparkSession, root: Path) -> Iterator[Lake]:
    with open_lake(root) as opened:
        opened.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        opened.stream("sums", SUMS)
        opened.insert("t", "'a', 5", "'c', 1")
        yield opened


def assert_as_before(lake: Lake, contents: object) -> None:
    """The old contents were there all the time, and now that it can be written a refresh does what it should."""
    assert lake.rows("sums") == contents
    assert [s.name for s in lake.ms.status()] == ["sums"]
    assert len(lake.stored) == 1
    lake.refresh("sums", Action.DIFFERENTIAL)
    assert lake.ms.status()[0].status is Status.ACTIVE
    lake.stream("second", SUMS)


def test_a_lake_that_cannot_be_opened(spark: SparkSession, root: Path) -> None:
    root.mkdir()
    with read_only(root), refused():
        millstream.connect(root / "inside")
    assert list(root.iterdir()) == []


def test_a_lake_that_becomes_read_only(lake: Lake) -> None:
    contents = lake.rows("sums")
    with read_only(lake.root):
        with refused():
            lake.ms.refresh_stream_table("sums")
        with refused():
            lake.ms.create_stream_table("second", SUMS)
        assert bag(lake.ms.table("sums")) == contents
        with millstream.connect(lake.root) as reader:
            assert [s.name for s in reader.status()] == ["sums"]
    assert_as_before(lake, contents)


def test_stored_tables_that_cannot_be_written(lake: Lake) -> None:
    """The catalog can: the failure is recorded."""
    contents = lake.rows("sums")
    with read_only(lake.root / "stream_tables", lake.root):
        with refused():
            lake.ms.refresh_stream_table("sums")
        with refused():
            lake.ms.create_stream_table("second", SUMS)
    assert lake.last("sums").error_message is not None
    assert lake.ms.status()[0].consecutive_errors == 1
    assert_as_before(lake, contents)


@pytest.mark.parametrize("limit", [0, 2_000])
def test_a_full_disk(lake: Lake, limit: int) -> None:
    contents = lake.rows("sums")
    with full_disk(limit):
        with refused():
            lake.ms.refresh_stream_table("sums")
        with refused():
            lake.ms.create_stream_table("second", SUMS)
        with refused():
            lake.ms.alter_stream_table("sums", query="SELECT k FROM t")
    assert_as_before(lake, contents)
