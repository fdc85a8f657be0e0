"""What happened in a range of a log is found out once per refresh, and carried to all that ask."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millstream
from millstream.engine.storage import store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from millstream.engine.storage.log.table_log import TableLog
    from millstream.engine.storage.model import RangeSummary

pytestmark = pytest.mark.spark

QUERY = """
SELECT t.k, t.v, s.total, m.most FROM t
JOIN (SELECT k, SUM(v) AS total FROM t GROUP BY k) s ON s.k = t.k
JOIN (SELECT MAX(total) AS most FROM (SELECT k, SUM(v) AS total FROM t GROUP BY k)) m ON m.most >= t.v
"""
"""The source is read by two stages, and the sums, a hidden stage, by two as well."""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_range_is_classified_once_per_refresh(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[tuple[str, int, int]] = Counter()
    classify = store.classify

    def counting(
        log: TableLog, after: int, upto: int, columns: Sequence[str] | None = None, table_id: str | None = None
    ) -> RangeSummary:
        counted[log.path, after, upto] += 1
        return classify(log, after, upto, columns, table_id)

    monkeypatch.setattr(store, "classify", counting)
    with millstream.connect(tmp_path / "lake") as ms:
        ms.sql("CREATE TABLE t (k INT, v INT)")
        ms.sql("INSERT INTO t VALUES (1, 10), (1, 20), (2, 5)")
        ms.create_stream_table("joined", QUERY, refresh_mode="DIFFERENTIAL")
        ms.sql("INSERT INTO t VALUES (2, 50)")
        counted.clear()
        assert ms.refresh_stream_table("joined").action == "DIFFERENTIAL"
        assert len(counted) >= 2
        assert set(counted.values()) == {1}, counted
        assert ms.verify("joined").ok
