"""`merge_strategy` decides how a delta is committed, never what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("strategy", ["merge", "delete_insert"])
def test_a_delta_is_applied_by_the_chosen_strategy(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    config = tmp_path / "millstream.toml"
    config.write_text(f'[millstream]\nmerge_strategy = "{strategy}"\n')
    with millstream.connect(tmp_path / "lake", config=config) as ms:
        ms.sql("CREATE TABLE t (k STRING, v INT)")
        ms.sql("INSERT INTO t VALUES ('a', 1), ('b', 2), (NULL, 3)")
        ms.create_stream_table("totals", "SELECT k, SUM(v) AS total FROM t GROUP BY k", refresh_mode="DIFFERENTIAL")
        ms.create_stream_table(
            "ranked", "SELECT k, v, RANK() OVER (PARTITION BY k ORDER BY v) AS r FROM t", refresh_mode="DIFFERENTIAL"
        )
        ms.sql("INSERT INTO t VALUES ('a', 10), (NULL, 4), ('c', 5)")
        ms.sql("DELETE FROM t WHERE k = 'b'")
        result = ms.refresh_stream_table("totals")
        assert (result.action, result.rows_inserted, result.rows_updated, result.rows_deleted) == (
            "DIFFERENTIAL",
            1,
            2,
            1,
        )
        assert sorted(map(tuple, ms.table("totals").collect()), key=str) == [("a", 11), ("c", 5), (None, 7)]
        assert ms.verify("totals").ok
        ms.sql("INSERT INTO t VALUES ('a', 0), ('a', 10)")
        assert ms.refresh_stream_table("ranked").action == "DIFFERENTIAL"
        assert ms.verify("ranked").ok
        assert _last_engine(tmp_path).startswith("Apache-Spark") == (strategy == "merge")


def _last_engine(root: Path) -> str:
    """Who wrote the newest commit of the stored table."""
    log = max(root.glob("lake/stream_tables/*/result/_delta_log/*.json"))
    commits = [json.loads(line).get("commitInfo") for line in log.read_text().splitlines()]
    return str(next(info["engineInfo"] for info in commits if info))
