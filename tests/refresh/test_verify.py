"""`verify` finds what is wrong: the oracle of most other tests is itself put to the test."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.engine.storage import ChangeSet
from millstream.refresh.verify import compare
from millstream.results import VerifyResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kits.lake import Lake

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("contents", "query", "missing", "extra"),
    [
        ("(1, 'a'), (1, 'a'), (NULL, 'b')", "(NULL, 'b'), (1, 'a'), (1, 'a')", 0, 0),
        ("(1, 'a')", "(1, 'a'), (1, 'a'), (1, 'a')", 2, 0),
        ("(1, 'a'), (1, 'a'), (NULL, NULL)", "(1, 'a'), (0, '')", 1, 2),
        ("(array(1), map('k', 2))", "(array(2), map('k', 2))", 1, 1),
        ("(array(0.0d, double('NaN')), 1)", "(array(-0.0d, double('NaN')), 1)", 0, 0),
        ("(1.0d, 'a'), (2.0d, 'a')", "(1.0000000000001d, 'a'), (2.1d, 'a')", 1, 1),
        ("(1.0d, 'a'), (1.0d, 'a')", "(1.0d, 'a')", 0, 1),
        ("(double('NaN'), 'a'), (0.0d, 'b')", "(double('NaN'), 'a'), (-0.0d, 'b')", 0, 0),
    ],
)
def test_bags_are_compared(spark: SparkSession, contents: str, query: str, missing: int, extra: int) -> None:
    left, right = (spark.sql(f"SELECT * FROM VALUES {rows}") for rows in (contents, query))
    assert compare(left, right, 1e-9) == VerifyResult(not missing and not extra, missing, extra)


def test_a_wrong_delta_is_found_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.table("t", "a INT, b INT", "1, 10", "1, 5", "2, 7")
    lake.stream("sums", "SELECT a, SUM(b) AS s FROM t GROUP BY a")
    store = lake.ms._runtime.workers.here().store
    apply = store.apply

    def forgetful(path: str, change: ChangeSet, *args: Any) -> Any:
        assert isinstance(change.added, pa.Table)
        return apply(path, replace(change, added=change.added.slice(1)), *args)

    monkeypatch.setattr(store, "apply", forgetful)
    lake.sql("UPDATE t SET b = b + 1 WHERE a = 1")
    lake.ms.refresh_stream_table("sums")
    assert lake.ms.verify("sums") == VerifyResult(False, 1, 0)
