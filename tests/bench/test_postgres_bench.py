"""The whole PostgreSQL benchmark at a size that says nothing: every part measures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from millstream.bench.postgres import idle, latency
from millstream.bench.postgres.report import write_report
from millstream.bench.postgres.run import Sizes, measured
from millstream.service import connect

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.long]

TINY = Sizes(
    bulk_rows=20,
    single_rows=2,
    overhead_rounds=2,
    served_rows=1_000,
    latency_rounds=2,
    idle_tables=3,
    idle_rounds=2,
    loaded_rows=(500,),
    load_rounds=1,
)


def test_every_part_measures(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (idle, latency):
        monkeypatch.setattr(part, "_WARM_UP", 1)
    result = measured(TINY, lambda _: None, partial(connect, spark=spark))
    assert len(result["overhead"]) == 5 * 6 * 2
    assert {(s["way"], s["round"]) for s in result["latency"]} == {(w, n) for w in ("trigger", "wal") for n in (1, 2)}
    assert all(0 < s["row_ms"] <= s["refresh_ms"] + 50 for s in result["latency"])
    assert [s["case"] for s in result["idle"]] == [idle.QUIET, idle.BUSY] * 2
    assert all(s[part] > 0 for s in result["loading"] for part in ("load", "copy", "parse", "write"))
    assert len(write_report(result, tmp_path, quick=True).verdicts) == 12 + 2 + 2 + 1
    assert (tmp_path / "postgres-quick.md").exists()
