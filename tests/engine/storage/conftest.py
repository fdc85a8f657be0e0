"""Both ways to the lake, and a view of a table that trusts neither: plain Spark and Delta."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from millstream.engine.storage import DeltaStore
from millstream.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))  # for the module below, which is no test

from storage_kit import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["auto", "never"])
def way(request: pytest.FixtureRequest) -> Literal["auto", "never"]:
    """`auto` takes the direct way wherever it can, `never` is the Spark way."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def store(spark: SparkSession, way: Literal["auto", "never"]) -> DeltaStore:
    return DeltaStore(spark, Settings(direct_way=way))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A directory for tables, with a space in its name."""
    root = tmp_path / "the lake"
    root.mkdir()
    return Lake(spark, root)
