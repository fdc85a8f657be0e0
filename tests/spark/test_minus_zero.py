"""-0.0 and 0.0 are one group and join with each other, but a column that is only passed through keeps its sign.

More shapes of queries are in tests/property/test_regressions.py; here are nested values and Spark's ways of writing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake
from millstream import Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::millstream.notices.NoticeWarning")]

COLUMNS = "id INT, d DOUBLE, f FLOAT, a ARRAY<DOUBLE>, s STRUCT<x: STRING, y: FLOAT>"
SHAPES = {
    "plain": "SELECT d, f, a, s FROM t",
    "bare": "SELECT d FROM t",
    "first": "SELECT d, f, a FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY id % 2 ORDER BY id) <= 2",
    "deep": "WITH RECURSIVE r AS (SELECT d, 0 n FROM t UNION ALL SELECT d, n + 1 FROM r WHERE n < 1) SELECT d FROM r",
    "least": "SELECT id, MIN(d) AS lo, MAX(f) AS hi, COUNT(*) AS n FROM t GROUP BY id",
    "lists": "SELECT id, COLLECT_LIST(d) AS l FROM t GROUP BY id",
}


def row(number: int, value: str) -> str:
    nested = f"array(1D, double('{value}')), named_struct('x', 'x', 'y', float('{value}'))"
    return f"{number}, double('{value}'), float('{value}'), {nested}"


def signed(lake: Lake, query: str) -> Counter[str]:
    return Counter(repr(r) for r in lake.ms.spark.sql(query).collect())


def assert_signed(lake: Lake) -> None:
    wrong = {}
    for name, query in lake.queries.items():
        assert lake.ms.refresh_stream_table(name).action in (Action.DIFFERENTIAL, Action.NO_DATA)
        stored, wanted = Counter(repr(r) for r in lake.ms.table(name).collect()), signed(lake, query)
        if stored != wanted:
            wrong[name] = f"missing {dict(wanted - stored)}, extra {dict(stored - wanted)}"
    assert wrong == {}


@pytest.mark.long
def test_a_column_that_is_passed_through_keeps_its_sign(lake: Lake) -> None:
    lake.is_compared_at_end = True
    lake.table("t", COLUMNS, row(1, "-0"), row(2, "0"), row(3, "NaN"), row(4, "1.5"))
    for name in ("plain", "first", "deep", "lists"):
        lake.stream(name, SHAPES[name])
    for statements in (
        [
            f"INSERT INTO t VALUES ({row(5, '-0')}), ({row(6, '0')}), ({row(7, 'NaN')})",
            "UPDATE t SET d = double('0') WHERE id = 1",
            "UPDATE t SET d = double('-0'), f = float('-0'), a = array(1D, double('-0')), "
            "s = named_struct('x', 'x', 'y', float('-0')) WHERE id = 2",
        ],
        ["DELETE FROM t WHERE id IN (1, 5, 7)", "UPDATE t SET d = -d, f = -f"],
    ):
        lake.sql(*statements)
        assert_signed(lake)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param({"direct_max_rows": 0}, id="staged"),
        pytest.param({"direct_way": "never"}, id="merged", marks=pytest.mark.long),
    ],
)
def test_what_spark_applies_keeps_it_too(spark: SparkSession, tmp_path: Path, way: dict[str, object]) -> None:
    with open_lake(tmp_path / "lake", **way) as lake:
        lake.is_compared_at_end = True
        lake.table("t", COLUMNS, row(1, "-0"), row(2, "0"), row(3, "0"), row(4, "-0"))
        for name in ("bare", "plain", "least"):
            lake.stream(name, SHAPES[name])
        lake.sql("UPDATE t SET d = -d, f = -f WHERE id = 1", f"INSERT INTO t VALUES ({row(5, '-0')})")
        assert_signed(lake)
        lake.sql("UPDATE t SET d = double('-0') WHERE id = 2", "DELETE FROM t WHERE id = 5")
        assert_signed(lake)
