"""Two real processes run one lake: the leader is killed with SIGKILL, and the stand-by takes over and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from kits.lake import open_lake
from kits.paths import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

PATIENCE_SECONDS = 180.0
TAKEOVER_SECONDS = 5.0


@contextmanager
def run_process(root: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = started(root, output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def started(root: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millstream.cli", "--lake", str(root), "run"]
    return subprocess.Popen(command, stdout=output, stderr=output, env=environment())


def until(condition: Callable[[], object], *logs: Path) -> float:
    """Wait until something is so; returns how long that took."""
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < PATIENCE_SECONDS, "\n".join(log.read_text()[-3000:] for log in logs)
        time.sleep(0.05)
    return time.monotonic() - start


def test_the_stand_by_takes_over_when_the_leader_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    root, logs = tmp_path / "lake", (tmp_path / "first.log", tmp_path / "second.log")
    with open_lake(root) as lake:
        lake.table("t", "k STRING, v INT", "'a', 1")
        lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM t GROUP BY k", schedule="1s")
        lake.ms.create_stream_table("total", "SELECT SUM(s) AS s FROM sums", schedule="2s")
        catalog = lake.ms._catalog
        with run_process(root, logs[0]) as first:
            until(lambda: catalog.leadership().leader is not None, *logs)
            with run_process(root, logs[1]) as second:
                until(lambda: "standing by" in logs[1].read_text(), *logs)
                lake.insert("t", "'b', 2")
                until(lambda: lake.rows("total")[(3,)], *logs)
                lake.insert("t", "'c', 3")
                os.kill(first.pid, signal.SIGKILL)
                took = until(lambda: catalog.leadership().epoch == 2, *logs)
                assert took < TAKEOVER_SECONDS
                until(lambda: lake.rows("total")[(6,)], *logs)
                second.send_signal(signal.SIGTERM)
                assert second.wait(PATIENCE_SECONDS) == 0
                assert "stopped; nothing is running" in logs[1].read_text()
        for name in ("sums", "total"):
            lake.refresh(name)
        assert catalog.leadership().leader is None
