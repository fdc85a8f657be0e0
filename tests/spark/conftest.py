"""A lake per test, all in the run's one JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """An empty lake; at the end, its stream tables are compared with their queries once more."""
    with open_lake(tmp_path / "lake") as opened:
        opened.is_compared_at_end = True
        yield opened
        wrong = {name: found for name in opened.queries if (found := opened.difference(name))}
        assert not wrong, f"verify is content, but {wrong}"
