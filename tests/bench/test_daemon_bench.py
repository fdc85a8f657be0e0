"""The whole benchmark of the running process at a size that says nothing: every section measures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from millstream.bench.daemon.run import measured, sections, write_report
from millstream.service import connect

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.long]


def test_every_section_measures(spark: SparkSession, tmp_path: Path) -> None:
    result = measured(lambda _: None, is_quick=True, opened=partial(connect, spark=spark))
    assert [name for name in result if name not in ("date", "machine")] == [section.name for section in sections()]
    assert all(0 < age < 60 for sample in result["latency"] for age in sample["age_seconds"])
    assert [s["mode"] for s in result["side_by_side"]] == ["off", "on"] * 2
    assert len(result["client"]) == 4
    assert len(write_report(result, tmp_path, quick=True).verdicts) == 3 + 4 + 1 + 1
