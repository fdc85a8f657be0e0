"""Refreshes that are cancelled or take too long: stopped at once, nothing half-done, and exact the next time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millstream
from kits.lake import Lake, open_lake
from millstream import Action, Code, MillstreamError, Status
from millstream.cancellation import current
from millstream.engine.storage import DeltaStore
from millstream.reasons import Reason
from millstream.refresh.computation import Computation
from millstream.refresh.execute import StageRun
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 60.0
# a row of `t` with v = 1 keeps one task busy for some seconds; Spark cannot interrupt it between two input rows
ENDLESS = (
    "SELECT k, SUM(CASE WHEN v = 1 THEN length(sha2(repeat(CAST(id AS STRING), 1000000 * v), 512)) ELSE v END) AS s "
    "FROM (SELECT k, v, explode(sequence(1, CASE WHEN v = 1 THEN 300 ELSE 1 END)) AS id FROM t) GROUP BY k"
)
STAGED = f"SELECT s, COUNT(*) AS n FROM ({ENDLESS}) GROUP BY s"


class Refreshing:
    """An explicit refresh in a thread of its own."""

    def __init__(self, ms: millstream.Millstream, name: str) -> None:
        self.errors: list[MillstreamError] = []
        self.results: list[millstream.RefreshResult] = []
        self._call = lambda: self.results.append(ms.refresh_stream_table(name))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except MillstreamError as error:
            self.errors.append(error)

    def ended(self) -> None:
        """Wait for the end."""
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.02)


def is_running(lake: Lake, name: str) -> bool:
    return lake.last(name).status is RefreshStatus.RUNNING


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", max_consecutive_errors=2) as opened:
        opened.table("t", "k STRING, v INT", "'a', 2", "'b', 3")
        yield opened


def test_a_refresh_is_cancelled_from_another_process(lake: Lake) -> None:
    """Here by another connection to the lake: the request goes through the catalog in any case."""
    lake.stream("sums", ENDLESS)
    contents = lake.rows("sums")
    assert lake.ms.cancel("sums") is False
    lake.insert("t", "'c', 1")
    refreshing = Refreshing(lake.ms, "sums")
    until(lambda: is_running(lake, "sums"))
    time.sleep(0.5)  # inside the Spark job
    with millstream.connect(lake.root) as other:
        assert other.cancel("sums") is True
    refreshing.ended()
    [error] = refreshing.errors
    assert error.code is Code.REFRESH_CANCELLED
    [record] = lake.ms._catalog.history(limit=1)
    assert (record.status, record.error_code) == (RefreshStatus.FAILED, Code.REFRESH_CANCELLED)
    [status] = lake.ms.status()
    assert (status.status, status.consecutive_errors) == (Status.ACTIVE, 0)
    assert lake.rows("sums") == contents
    assert "cancel_requested" in [str(e.event) for e in lake.ms.events()]
    lake.sql("DELETE FROM t WHERE v = 1")
    lake.insert("t", "'d', 4")
    lake.refresh("sums", Action.DIFFERENTIAL)  # the request was for the other refresh


def test_a_refresh_that_takes_too_long_counts(lake: Lake) -> None:
    lake.stream("sums", ENDLESS)
    contents = lake.rows("sums")
    lake.insert("t", "'c', 1")
    with open_lake(lake.root, max_consecutive_errors=1, refresh_timeout_seconds=2) as limited:
        refreshing = Refreshing(limited.ms, "sums")
        refreshing.ended()
    assert [e.code for e in refreshing.errors] == [Code.REFRESH_TIMEOUT]
    [status] = lake.ms.status()
    assert (status.status, status.consecutive_errors) == (Status.ERROR, 1)
    assert lake.rows("sums") == contents
    lake.sql("DELETE FROM t WHERE v = 1")
    lake.refresh("sums", Action.DIFFERENTIAL)  # which resumes it
    assert lake.ms.status()[0].status is Status.ACTIVE


def request() -> None:
    """Ask the refresh of this thread to stop."""
    cancellation = current()
    assert cancellation is not None
    cancellation.request(MillstreamError(Code.REFRESH_CANCELLED, "cancelled by the test"))


@contextmanager
def cancelled_at(monkeypatch: pytest.MonkeyPatch, place: type, method: str, when: str, nth: int = 1) -> Iterator[None]:
    """The refresh is asked to stop right before or after the nth call of a method."""
    original, calls = getattr(place, method), 0

    def step(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        at = calls
        if at == nth and when == "before":
            request()
        result = original(*args, **kwargs)
        if at == nth and when == "after":
            request()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(place, method, step)
        yield


def test_cancelled_between_stages_is_resumed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.stream("staged", STAGED)
    contents = lake.rows("staged")
    lake.insert("t", "'c', 4")
    with cancelled_at(monkeypatch, DeltaStore, "apply", "after"), pytest.raises(MillstreamError) as caught:
        lake.ms.refresh_stream_table("staged")
    assert caught.value.code is Code.REFRESH_CANCELLED
    assert lake.rows("staged") == contents
    assert lake.ms._catalog.open_intents()  # the first stage is committed
    lake.insert("t", "'d', 5")
    lake.refresh("staged")
    assert not lake.ms._catalog.open_intents()


def test_cancelled_right_before_the_commit_commits_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.stream("sums", ENDLESS)
    contents, versions = lake.rows("sums"), versions_of(lake, "sums")
    lake.insert("t", "'c', 4")
    with cancelled_at(monkeypatch, DeltaStore, "apply", "before"), pytest.raises(MillstreamError) as caught:
        lake.ms.refresh_stream_table("sums")
    assert caught.value.code is Code.REFRESH_CANCELLED
    assert (lake.rows("sums"), versions_of(lake, "sums")) == (contents, versions)
    assert not lake.ms._catalog.open_intents()
    lake.refresh("sums", Action.DIFFERENTIAL)


def test_cancelled_after_the_commit_is_complete(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.stream("sums", ENDLESS)
    lake.insert("t", "'c', 4")
    with cancelled_at(monkeypatch, StageRun, "differential", "after"):
        assert lake.ms.refresh_stream_table("sums").action is Action.DIFFERENTIAL
    lake.assert_exact("sums")
    lake.insert("t", "'d', 4")
    original, calls = Computation._rows, 0

    def rows(*args: Any) -> int:
        """The rows are counted before and after the load; a job that counts them after it is interrupted."""
        nonlocal calls
        calls += 1
        if calls == 2:
            request()
            raise PySparkException("the job was cancelled")
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Computation, "_rows", rows)
        result = lake.ms.refresh_stream_table("sums", mode="FULL")
    assert result.reason.startswith(str(Reason.RECOVERED))
    assert lake.last("sums").status is RefreshStatus.COMPLETED
    assert not lake.ms._catalog.open_intents()
    lake.assert_exact("sums")


def versions_of(lake: Lake, name: str) -> list[int]:
    """The versions of the stored tables, by their logs."""
    table = lake.ms._catalog.get(millstream.naming.TableName.parse(name))
    return [lake.ms._runtime.workers.here().store.version(stage.path) for stage in table.stages]
