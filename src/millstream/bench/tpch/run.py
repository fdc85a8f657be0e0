"""FULL against DIFFERENTIAL on TPC-H: all 22 queries over the same tables and changes, in one process, interleaved."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.bench.page import show
from millstream.bench.run import DEFAULT_OUT, machine
from millstream.bench.tpch.changes import Changes
from millstream.bench.tpch.data import generate, load
from millstream.bench.tpch.queries import NUMBERS, query
from millstream.bench.tpch.report import write_report

if TYPE_CHECKING:
    from millstream.cli.output import Output
    from millstream.service import Millstream

FRACTION = 0.001
CYCLES = 3
MODES = ("FULL", "DIFFERENTIAL STRICT")


@dataclass(frozen=True)
class Sample:
    """One measured refresh."""

    query: str
    mode: str
    cycle: int
    action: str
    ms: float
    jobs: int | None
    rows_read: int
    phases: dict[str, float]


def run_tpch(
    output: Output,
    *,
    quick: bool = False,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
    scale: float | None = None,
) -> None:
    """Measure, print the summary, and write raw data, plot and page.

    Args:
        quick: a tenth of the data and one cycle, unless a scale is given.
    """
    from millstream.service import connect

    announce = progress or (lambda _: None)
    factor = scale or (0.1 if quick else 1)
    with tempfile.TemporaryDirectory(prefix="millstream-tpch-") as directory:
        generated = Path(directory) / "generated"
        announce(f"generating TPC-H at scale factor {factor:g}")
        generate(generated, factor)
        with connect(Path(directory) / "lake", progress=announce) as ms:
            announce("loading TPC-H")
            load(ms, generated)
            samples = _measured(ms, factor, 1 if quick else CYCLES, announce)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "scale": factor,
        "fraction": FRACTION,
        "samples": [asdict(s) for s in samples],
    }
    show(output, result, write_report(result, out or DEFAULT_OUT, quick=quick))


def _measured(ms: Millstream, scale: float, cycles: int, announce: Callable[[str], None]) -> list[Sample]:
    """All queries in both modes, cycle by cycle; the first cycle warms the JVM up and is left out."""
    changes, samples = Changes(ms, FRACTION), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that ORDER BY is dropped, once per table
        for number in NUMBERS:
            for mode in MODES:
                announce(f"loading q{number} ({mode})")
                ms.create_stream_table(_name(number, mode), query(number, scale), refresh_mode=mode)
    for cycle in range(cycles + 1):
        announce(f"changing {FRACTION:.1%} of orders and lineitem, cycle {cycle} of {cycles}")
        changes.apply(others=())
        for number in NUMBERS:
            for mode in MODES:
                announce(f"cycle {cycle} of {cycles}: q{number} ({mode})")
                sample = _refreshed(ms, number, mode, cycle)
                if cycle > 0:
                    samples.append(sample)
    for number in NUMBERS:
        announce(f"verifying q{number}")
        if not ms.verify(_name(number, MODES[1])).ok:
            raise AssertionError(f"q{number} differs from its query")
    return samples


def _refreshed(ms: Millstream, number: int, mode: str, cycle: int) -> Sample:
    name = _name(number, mode)
    start = time.perf_counter()
    # a requested FULL refresh computes the query even if nothing it reads has changed
    result = ms.refresh_stream_table(name, mode="FULL" if mode == "FULL" else None)
    elapsed = (time.perf_counter() - start) * 1000
    details = ms.refresh_history(name, 1)[0].details
    jobs, read, phases = details.get("jobs"), details.get("rows_read"), details.get("ms")
    return Sample(
        f"q{number}",
        mode.split()[0],
        cycle,
        str(result.action),
        round(elapsed, 1),
        jobs if isinstance(jobs, int) else None,
        read if isinstance(read, int) else 0,
        dict(phases) if isinstance(phases, dict) else {},
    )


def _name(number: int, mode: str) -> str:
    return f"q{number:02d}_{mode.split()[0].lower()}"
