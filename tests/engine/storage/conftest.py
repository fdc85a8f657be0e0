"""Both paths to the lake, and a view of a table that trusts neither: plain Spark and Delta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.storage import Lake
from millstream.engine.storage import DeltaStore
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["direct", "spark"])
def way(request: pytest.FixtureRequest) -> str:
    """`direct` is the direct path wherever it can be taken, `spark` never takes it.

    `scan` is the direct path for tables too large to be read on the driver.
    """
    return str(request.param)


@pytest.fixture
def store(spark: SparkSession, way: str, monkeypatch: pytest.MonkeyPatch) -> DeltaStore:
    if way == "scan":
        monkeypatch.setattr("millstream.engine.storage.read.driver_scan.MAX_ROWS", -1)
    return DeltaStore(spark, Settings(direct_way="never" if way == "spark" else "auto"))


@pytest.fixture
def both(spark: SparkSession) -> tuple[DeltaStore, DeltaStore]:
    """The direct path and the Spark path, for tests that only read what plain Spark wrote."""
    return DeltaStore(spark, Settings()), DeltaStore(spark, Settings(direct_way="never"))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A directory for tables, with a space in its name."""
    root = tmp_path / "the lake"
    root.mkdir()
    return Lake(spark, root)
