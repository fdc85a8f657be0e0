"""A lake per test, all in the run's one JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))  # for the module below, which is no test

import pytest
from lake_kit import Lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """An empty lake whose contents two judges look at."""
    with open_lake(tmp_path / "lake") as opened:
        opened.second_judge = True
        yield opened
