"""A refresh of a cycle that is cancelled: before its last commit it is resumed later, after it it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.lake import Lake, open_lake
from millstream import Action, Code, MillstreamError
from millstream.cancellation import check, current
from millstream.refresh.computation import Computation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ODD = "SELECT src, dst FROM edges UNION SELECT e.src, w.dst FROM edges e JOIN even w ON e.dst = w.src"
EVEN = "SELECT DISTINCT e.src, w.dst FROM edges e JOIN odd w ON e.dst = w.src"


@pytest.fixture
def walks(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", allow_circular=True) as lake:
        lake.table("edges", "src INT, dst INT", "1, 2", "2, 1")
        lake.stream("odd", "SELECT DISTINCT src, dst FROM edges")
        lake.stream("even", EVEN)
        lake.ms.alter_stream_table("odd", query=ODD)
        lake.ms.refresh_stream_table("odd")
        yield lake


@pytest.mark.parametrize("committed", [1, 2])
def test_cancelled_after_a_commit(walks: Lake, committed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Computation.compute, 0

    def compute(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        done = original(*arguments)
        if calls == committed:
            cancellation = current()
            assert cancellation is not None
            cancellation.request(MillstreamError(Code.REFRESH_CANCELLED, "cancelled by the test"))
            check()
        return done

    walks.insert("edges", "2, 3")
    with monkeypatch.context() as patch:
        patch.setattr(Computation, "compute", compute)
        if committed == 2:
            assert walks.ms.refresh_stream_table("odd").action is Action.DIFFERENTIAL
        else:
            with pytest.raises(MillstreamError) as caught:
                walks.ms.refresh_stream_table("odd")
            assert caught.value.code is Code.REFRESH_CANCELLED
            assert len(walks.ms._catalog.open_intents()) == 2  # one member is committed: the cycle is completed later
    assert [s.consecutive_errors for s in walks.ms.status()] == [0, 0]
    walks.insert("edges", "3, 1")
    walks.ms.refresh_stream_table("even")
    assert not walks.ms._catalog.open_intents()
    for name in ("odd", "even"):
        walks.assert_exact(name)
