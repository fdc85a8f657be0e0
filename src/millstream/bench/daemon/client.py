"""How long a command takes while the lake's process runs: `millstream refresh` of an unchanged table."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

from millstream.bench.daemon.section import Bench, Samples, Section, verdict
from millstream.bench.page import TableOf
from millstream.service.daemon.background import running

_MOST_TIMES = 2.0
_IMPORTS = 'python -c "import typer, rich"'
_REFRESH = "millstream refresh"


@dataclass(frozen=True, slots=True)
class Sample:
    """One process, from its start to its end."""

    round: int
    command: str
    seconds: float


def _measure(bench: Bench) -> list[Sample]:
    rounds = 2 if bench.is_quick else 21
    directory = bench.directory / "client"
    samples: list[Sample] = []
    with bench.opened(directory) as ms:
        ms.sql("CREATE TABLE t AS SELECT id FROM range(10)")
        ms.create_stream_table("unchanged", "SELECT COUNT(*) AS n FROM t", schedule="1h")
        commands = {
            _IMPORTS: [sys.executable, "-c", "import typer, rich"],
            _REFRESH: [sys.executable, "-m", "millstream.cli", "--lake", str(directory), "refresh", "unchanged"],
        }
        with running(ms):
            for number in range(rounds + 1):  # the first round warms the file cache
                bench.announce(f"timing commands, round {number} of {rounds}")
                for name, command in commands.items():
                    began = time.perf_counter()
                    subprocess.run(command, check=True, capture_output=True)
                    if number:
                        samples.append(Sample(number, name, round(time.perf_counter() - began, 4)))
    return samples


def _seconds(samples: Samples, command: str) -> float:
    return float(median(s["seconds"] for s in samples if s["command"] == command))


def _table(samples: Samples) -> TableOf:
    base = _seconds(samples, _IMPORTS)
    rows: list[tuple[str, ...]] = [
        (f"`{name}`", f"{_seconds(samples, name) * 1000:.0f}", f"{_seconds(samples, name) / base:.2f}")
        for name in (_IMPORTS, _REFRESH)
    ]
    return "A command while the lake's process runs, process start included", ("command", "median ms", "times"), rows


def _verdicts(samples: Samples) -> list[str]:
    times = _seconds(samples, _REFRESH) / _seconds(samples, _IMPORTS)
    text = f"refresh of an unchanged table takes {times:.2f} times as long as importing typer and rich"
    return [verdict(times <= _MOST_TIMES, f"{text} (at most {_MOST_TIMES:g})")]


SECTION = Section("client", _measure, _table, _verdicts)
