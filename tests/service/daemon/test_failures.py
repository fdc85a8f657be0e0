"""The daemon when something around it fails: its leadership, the clock, its tables, its settings, the disk."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.daemon import running, status_of, until
from kits.lake import Lake, open_lake, refused
from millstream import Action, Code, MillstreamError, Status
from millstream.catalog.leadership import Leader
from millstream.engine.storage import DeltaStore
from millstream.naming import TableName
from millstream.reasons import Reason
from millstream.results import RefreshStatus
from millstream.scheduler.failures import FailureClass, class_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", scheduler_interval_ms=100, max_consecutive_errors=2) as opened:
        opened.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        yield opened


def versions_of(lake: Lake, name: str) -> list[int]:
    store = lake.ms._runtime.workers.here().store
    return [store.version(stage.path) for stage in lake.ms._catalog.get(TableName.parse(name)).stages]


def test_a_leader_that_was_replaced_during_a_refresh_commits_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake.ms.create_stream_table("sums", SUMS, schedule="1s")
    versions, original = versions_of(lake, "sums"), DeltaStore.apply

    def apply(*args: Any, **kwargs: Any) -> Any:
        lake.ms._catalog.take_leadership(
            Leader(id="other", host="elsewhere", pid=1, version="0", since=datetime.now(UTC))
        )
        return original(*args, **kwargs)

    with monkeypatch.context() as patch, running(lake.ms, fails=True) as daemon:
        until(lambda: daemon.activities)
        patch.setattr(DeltaStore, "apply", apply)
        lake.insert("t", "'c', 5")
        until(lambda: daemon.errors)
    [error] = daemon.errors
    assert isinstance(error, MillstreamError)
    assert error.code is Code.LEADERSHIP_LOST
    assert versions_of(lake, "sums") == versions
    assert lake.ms._catalog.open_intents()  # the new leader finds it, and starts over
    with open_lake(tmp_path / "lake") as other:
        other.refresh("sums", Action.DIFFERENTIAL)
        assert status_of(other.ms, "sums").consecutive_errors == 0


def test_a_clock_that_jumps_and_settings_that_change(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    jumped = [timedelta()]
    lake.ms._clock = lambda: datetime.now(UTC) + jumped[-1]
    lake.ms.create_stream_table("sums", SUMS, schedule="1s")
    caplog.set_level(logging.INFO, "millstream")
    file = lake.root / "millstream.toml"
    with running(lake.ms) as daemon:
        for number, hours in enumerate([0, -1, 2], 10):
            jumped.append(timedelta(hours=hours))
            lake.insert("t", f"'c{number}', {number}")
            until(lambda: lake.rows("sums")[(f"c{number}", number)])  # noqa: B023 - called in this round only
        file.write_text("[millstream]\nscheduler_interval_ms = 100\nenabled = false\ntime_zone = 'CET'\n")
        daemon.reload.set()
        until(lambda: "changed: enabled" in caplog.text)
        assert "take effect with a restart: time_zone" in caplog.text
        file.write_text("[millstream]\nenabled = 7\n")
        daemon.reload.set()
        until(lambda: "the settings stay as they are: SETTING_INVALID" in caplog.text)
        lake.insert("t", "'d', 7")
        seen = len(daemon.activities)
        until(lambda: len(daemon.activities) > seen + 15)
        assert not lake.rows("sums")[("d", 7)]  # it is still disabled
        file.write_text("[millstream]\nscheduler_interval_ms = 100\n")
        daemon.reload.set()
        until(lambda: lake.rows("sums")[("d", 7)])
    assert not daemon.errors


def test_readers_of_a_failed_table_wait_and_say_for_which(lake: Lake) -> None:
    lake.ms.create_stream_table("ratios", "SELECT k, 10 DIV v AS r FROM t", schedule="1s")
    lake.ms.create_stream_table("above", "SELECT COUNT(*) AS n FROM ratios", schedule="1s")
    assert status_of(lake.ms, "above").waits_for is None
    lake.insert("t", "'z', 0")
    with running(lake.ms) as daemon:
        until(lambda: status_of(lake.ms, "ratios").status is Status.ERROR)
        until(lambda: lake.last("above").status is RefreshStatus.SKIPPED)
        seen = len(daemon.activities)
        until(lambda: len(daemon.activities) > seen + 10)
    assert lake.last("above").reason == f"{Reason.WAITS}: for ratios"
    skips = [r for r in lake.ms.refresh_history("above", 100) if r.status is RefreshStatus.SKIPPED]
    assert len(skips) == 1
    assert status_of(lake.ms, "above").waits_for == "ratios"
    assert f"{Reason.WAITS}: for ratios" in lake.ms.explain("above").reasons
    lake.sql("DELETE FROM t WHERE v = 0")
    lake.refresh("above")  # an explicit refresh that succeeds resumes what it reads
    assert {s.status for s in lake.ms.status()} == {Status.ACTIVE}
    assert status_of(lake.ms, "above").waits_for is None
    lake.ms._catalog.set_error(lake.ms._catalog.get(TableName.parse("ratios")).id, "for the test")
    lake.ms.alter_stream_table("ratios", query="SELECT k, 20 DIV v AS r FROM t")  # so does a new definition
    assert status_of(lake.ms, "ratios").status is Status.ACTIVE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(directory)]
    try:
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs root")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_disk_that_becomes_full_under_spark(spark: SparkSession, small_disk: Path) -> None:
    with open_lake(small_disk / "lake") as lake:
        lake.ms.sql(
            "CREATE TABLE big USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') AS "
            "SELECT id, sha2(CAST(id AS STRING), 512) AS text FROM range(100000)"
        )
        lake.stream("copies", "SELECT id, text FROM big WHERE id < 10")
        lake.ms.create_stream_table("others", "SELECT text, id FROM big", initialize=False)
        contents = lake.rows("copies")
        free = 2 << 20
        with (small_disk / "filler").open("wb") as filler:
            room = shutil.disk_usage(small_disk).free - free
            filler.write(b"\0" * max(room, 0))
        with refused(Code.LAKE_UNWRITABLE):
            lake.ms.refresh_stream_table("others")
        assert class_of(Code.LAKE_UNWRITABLE) is FailureClass.TRANSIENT
        assert lake.rows("copies") == contents
        (small_disk / "filler").unlink()
        lake.refresh("others")
        lake.refresh("copies")
