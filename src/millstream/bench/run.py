"""Runs the matrix of sizes, change rates, queries and modes in one process, interleaved, and writes the results."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from millstream.bench.page import show
from millstream.bench.report import write_report
from millstream.bench.workload import GROUPS, QUERIES, Workload

if TYPE_CHECKING:
    from millstream.cli.output import Output
    from millstream.service import Millstream

DEFAULT_OUT = Path("docs/benchmarks")
MODES = ("FULL", "DIFFERENTIAL", "AUTO")
SIZES = (100_000, 1_000_000, 10_000_000)
RATES = (0.0001, 0.01, 0.1, 0.5)
GROWTH_CHANGES = 1_000
LONG_CHANGES = 100_000
"""Changes of more rows are measured once."""


@dataclass(frozen=True)
class Sample:
    """One measured refresh."""

    query: str
    mode: str
    rows: int
    changes: int
    cycle: int
    action: str
    ms: float
    jobs: int | None
    rows_read: int
    phases: dict[str, float]


def run(
    output: Output,
    *,
    quick: bool = False,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
    sizes: tuple[int, ...] | None = None,
) -> None:
    """Measure, print the summary, and write raw data, plot and page."""
    from millstream.service import connect

    announce = progress or (lambda _: None)
    chosen = sizes or (SIZES[:1] if quick else SIZES)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as lake, connect(lake, progress=announce) as ms:
        bench = _Bench(ms, announce, cycles=2 if quick else 3)
        bench.warm_up()
        trivial_before = bench.trivial_job_ms()
        for rows in chosen:
            bench.matrix(rows)
        result = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "trivial_job_ms": median([trivial_before, bench.trivial_job_ms()]),
            "no_data_ms": bench.no_data_ms,
            "samples": [asdict(s) for s in bench.samples],
        }
    show(output, result, write_report(result, out or DEFAULT_OUT, quick=quick))


class _Bench:
    def __init__(self, ms: Millstream, announce: Callable[[str], None], cycles: int) -> None:
        self.ms = ms
        self.announce = announce
        self.cycles = cycles
        self.samples: list[Sample] = []
        self.no_data_ms: list[float] = []

    def warm_up(self) -> None:
        """Let the JVM compile what every refresh uses."""
        self.announce("warming up")
        load = Workload(self.ms, 1_000)
        load.build()
        for query, text in QUERIES.items():
            self.ms.create_stream_table(f"warm_{query}", load.query(text), refresh_mode="DIFFERENTIAL")
        for _ in range(8):
            load.change(20)
            for query in QUERIES:
                self.ms.refresh_stream_table(f"warm_{query}")
        for query in QUERIES:
            self.ms.drop_stream_table(f"warm_{query}")

    def trivial_job_ms(self) -> float:
        """The warm median of the smallest Spark job there is, the yardstick of fixed cost."""
        times = []
        for _ in range(15):
            start = time.perf_counter()
            self.ms.spark.range(10).groupBy().sum("id").collect()
            times.append((time.perf_counter() - start) * 1000)
        return median(times[5:])

    def matrix(self, rows: int) -> None:
        """All queries, rates and modes at one size, over one source table."""
        load = Workload(self.ms, rows)
        self.announce(f"generating {rows:,} rows")
        load.build()
        names = {}
        queries = {**QUERIES, **({"groups": GROUPS} if rows >= 1_000_000 else {})}
        for query, text in queries.items():
            for mode in MODES:
                self.announce(f"{rows:,} rows: loading {query} ({mode})")
                name = f"{query}_{rows}_{mode.lower()}"
                self.ms.create_stream_table(name, load.query(text), refresh_mode=mode)
                names[name] = (query, mode)
        fixed = {GROWTH_CHANGES} if rows > SIZES[0] else {100, GROWTH_CHANGES}
        for count in sorted({max(10, int(rows * rate)) for rate in RATES} | fixed):
            # neither a warmer JVM nor momentary noise matters for a refresh that takes this long
            cycles = range(self.cycles + 1) if count <= LONG_CHANGES else range(1, 2)
            for cycle in cycles:
                self.announce(f"{rows:,} rows: changing {count:,}, cycle {cycle + 1} of {self.cycles + 1}")
                load.change(count)
                for name, (query, mode) in names.items():
                    self._measure(name, query, mode, rows, count, cycle)
        self._no_data(names)
        for name in names:
            if not self.ms.verify(name).ok:
                raise AssertionError(f"{name} differs from its query")
            self.ms.drop_stream_table(name)
        self.ms.sql(f"DROP TABLE {load.src}")

    def _measure(self, name: str, query: str, mode: str, rows: int, count: int, cycle: int) -> None:
        self.announce(f"{rows:,} rows, {count:,} changed: {query} ({mode})")
        start = time.perf_counter()
        self.ms.refresh_stream_table(name)
        elapsed = (time.perf_counter() - start) * 1000
        record = self.ms.refresh_history(name, 1)[0]
        if cycle == 0:
            return  # the first cycle after a change of size warms up
        details = record.details
        jobs, read, phases = details.get("jobs"), details.get("rows_read"), details.get("ms")
        self.samples.append(
            Sample(
                query,
                mode,
                rows,
                count,
                cycle,
                str(record.action),
                round(elapsed, 1),
                jobs if isinstance(jobs, int) else None,
                read if isinstance(read, int) else 0,
                dict(phases) if isinstance(phases, dict) else {},
            )
        )

    def _no_data(self, names: dict[str, tuple[str, str]]) -> None:
        name = next(n for n, (query, mode) in names.items() if (query, mode) == ("aggregate", "DIFFERENTIAL"))
        for _ in range(50):
            start = time.perf_counter()
            result = self.ms.refresh_stream_table(name)
            self.no_data_ms.append(round((time.perf_counter() - start) * 1000, 2))
            assert result.action == "NO_DATA"


def machine() -> dict[str, object]:
    """The machine that the benchmark ran on."""
    import os

    return {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
