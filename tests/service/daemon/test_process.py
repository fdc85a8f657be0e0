"""`millstream run` as a real process: SIGHUP, a JVM that is killed while it is idle or refreshes, and what follows."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import open_lake
from kits.lake_process import FAST
from kits.paths import environment
from millstream.errors import Code
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

PATIENCE_SECONDS = 180.0
NOTICED_SECONDS = 15.0
TEMPORARY = 75
# a row with v = 1 keeps one task busy for a long time
SLOW = (
    "SELECT k, SUM(CASE WHEN v = 1 THEN length(sha2(repeat(CAST(id AS STRING), 1000000 * v), 512)) ELSE v END) AS s "
    "FROM (SELECT k, v, explode(sequence(1, CASE WHEN v = 1 THEN 100000 ELSE 1 END)) AS id FROM t) GROUP BY k"
)


@contextmanager
def run_process(root: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "millstream.cli", "--lake", str(root), "run"]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment())
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(condition: Callable[[], object], log: Path) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < PATIENCE_SECONDS, log.read_text()[-3000:]
        time.sleep(0.05)


def kill_jvm(process: subprocess.Popen[bytes]) -> None:
    found = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(process.pid)], capture_output=True, text=True)
    [java] = [int(line.split()[0]) for line in found.stdout.splitlines() if "java" in line]
    subprocess.run(["kill", "-9", str(java)], check=True)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_process_ends_when_its_jvm_does(spark: SparkSession, tmp_path: Path, is_idle: bool) -> None:
    root, log = tmp_path / "lake", tmp_path / "run.log"
    with open_lake(root) as lake:
        lake.table("t", "k STRING, v INT", "'a', 2")
        lake.ms.create_stream_table("sums", SLOW, schedule="1s")
        (root / "millstream.toml").write_text(FAST)
        with run_process(root, log) as process:
            until(lambda: lake.ms._catalog.leadership().leader is not None, log)
            (root / "millstream.toml").write_text(f"[millstream]\nmax_consecutive_errors = 1\njars = 'x'\n{FAST}")
            process.send_signal(signal.SIGHUP)
            until(lambda: "changed: max_consecutive_errors" in log.read_text(), log)
            assert "take effect with a restart: jars" in log.read_text()
            if not is_idle:
                lake.insert("t", "'b', 1")
                until(lambda: lake.last("sums").status is RefreshStatus.RUNNING, log)
            kill_jvm(process)
            assert process.wait(NOTICED_SECONDS) == TEMPORARY, log.read_text()
        assert f"{Code.JVM_LOST}" in log.read_text() or "Java process has ended" in log.read_text()
        assert lake.ms._catalog.leadership().leader is None
        [status] = lake.ms.status()
        assert status.consecutive_errors == 0
        lake.sql("DELETE FROM t WHERE v = 1")
        lake.insert("t", "'c', 3")
        lake.refresh("sums")
