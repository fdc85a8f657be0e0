"""PostgreSQL's page: a table per measurement, the verdict against each target, a plot, and the raw data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, stdev
from typing import TYPE_CHECKING, Any

from millstream.bench.page import Summary, TableOf, write

if TYPE_CHECKING:
    from types import ModuleType

Samples = Sequence[Mapping[str, Any]]

MOST_US = {"bulk": 2.5, "single": 25.0}
MOST_JOBS = 6.0
MOST_IDLE_MS = 5.0
MOST_COPIES = 1.5
_WAYS = {
    "none_again": "none, again",
    "trigger": "trigger",
    "wal": "WAL",
    "none_replica": "none, wal_level = replica",
}
_NOTES = (
    "The servers have fsync, synchronous_commit, full_page_writes and autovacuum off, so that disks add no noise;",
    "wal_level is logical unless stated otherwise.",
    "What capture adds to a row is the median over rounds of the difference from the same statements on a table",
    "without capture in the same round, by the clock and by the backend's CPU. Single rows are prepared statements,",
    "each a transaction, in pipelines of 100 that alternate between the tables. Noise is the standard deviation of",
    "what a second table without capture adds. Nothing reads slot and buffer meanwhile. The yardstick of a load is",
    "`COPY ... TO STDOUT` over one connection, parsed by pyarrow on all cores, and written as one Parquet file.",
)


def write_report(result: Mapping[str, Any], out: Path, *, quick: bool) -> Summary:
    """Write raw data, plot and page to `out`; those of a quick run have another name than those of a full run."""
    summary = summarise(result)
    page = out / ("postgres-quick.md" if quick else "postgres.md")
    draw = partial(_figure, samples=result["overhead"])
    write(result, summary, page, "PostgreSQL benchmark", _NOTES, draw, caption="What capture adds to a row")
    return summary


def summarise(result: Mapping[str, Any]) -> Summary:
    """Medians, and the targets."""
    overhead, latency, idle, loading = (result[part] for part in ("overhead", "latency", "idle", "loading"))
    return Summary(
        [
            _overhead_table(overhead),
            _latency_table(latency, result),
            _idle_table(idle, result),
            _loading_table(loading),
        ],
        [
            *_overhead_verdicts(overhead),
            *_latency_verdicts(latency),
            *_idle_verdicts(idle),
            *_loading_verdicts(loading),
        ],
    )


def _verdict(is_reached: bool, text: str) -> str:
    return f"{'reached' if is_reached else 'MISSED '}  {text}"


# The cost of capture


def added(samples: Samples, way: str, size: str, statement: str, measure: str) -> list[float]:
    """What a capture mode adds to a row in each round, in microseconds.

    Args:
        measure: `wall_us` or `cpu_us`.
    """
    here = [s for s in samples if (s["size"], s["statement"]) == (size, statement)]
    without = {s["round"]: s[measure] for s in here if s["way"] == "none"}
    return [s[measure] - without[s["round"]] for s in here if s["way"] == way]


def _kinds(samples: Samples) -> list[tuple[str, str]]:
    return list(dict.fromkeys((s["size"], s["statement"]) for s in samples))


def _overhead_table(samples: Samples) -> TableOf:
    lines = []
    for size, statement in _kinds(samples):
        without = [s for s in samples if (s["way"], s["size"], s["statement"]) == ("none", size, statement)]
        pairs = [(median(s["wall_us"] for s in without), median(s["cpu_us"] for s in without))]
        pairs += [
            (
                median(added(samples, way, size, statement, "wall_us")),
                median(added(samples, way, size, statement, "cpu_us")),
            )
            for way in _WAYS
        ]
        noise = stdev(added(samples, "none_again", size, statement, "cpu_us"))
        cells = [f"{pairs[0][0]:.2f} / {pairs[0][1]:.2f}", *(f"{wall:+.2f} / {cpu:+.2f}" for wall, cpu in pairs[1:])]
        lines.append((f"{size} {statement}", *cells, f"{noise:.2f}"))
    columns = ("statements", "without capture", *_WAYS.values(), "noise")
    return "Capture: µs a row, by the clock / of the backend's CPU", columns, lines


def _overhead_verdicts(samples: Samples) -> list[str]:
    lines = []
    for size, statement in _kinds(samples):
        wall, cpu = (median(added(samples, "trigger", size, statement, m)) for m in ("wall_us", "cpu_us"))
        most = MOST_US[size]
        text = f"trigger, {size} {statement}: {cpu:.2f} µs of CPU a row, {wall:.2f} by the clock (at most {most:g})"
        lines.append(_verdict(max(wall, cpu) <= most, text))
    for size, statement in _kinds(samples):
        cpu = median(added(samples, "wal", size, statement, "cpu_us"))
        noise = stdev(added(samples, "none_again", size, statement, "cpu_us"))
        text = f"WAL, {size} {statement}: {cpu:+.2f} µs of CPU a row (within noise, which is {noise:.2f})"
        lines.append(_verdict(cpu <= noise, text))
    return lines


# From COMMIT to the served row


def _latency_table(samples: Samples, result: Mapping[str, Any]) -> TableOf:
    lines: list[tuple[str, ...]] = []
    for way in dict.fromkeys(s["way"] for s in samples):
        here = [s for s in samples if s["way"] == way]
        trivial, row, refresh = (median(s[key] for s in here) for key in ("trivial_ms", "row_ms", "refresh_ms"))
        lines.append((_WAYS[way], f"{trivial:.1f}", f"{row:.0f}", f"{refresh:.0f}", f"{_in_jobs(here):.1f} x"))
    title = f"From COMMIT to the served row: aggregate over {result['sizes']['served_rows']:,} rows, 100 changes"
    return title, ("capture", "trivial job ms", "COMMIT to row ms", "to the end of the refresh ms", "in jobs"), lines


def _in_jobs(samples: Samples) -> float:
    return float(median(s["row_ms"] for s in samples) / median(s["trivial_ms"] for s in samples))


def _latency_verdicts(samples: Samples) -> list[str]:
    lines = []
    for way in dict.fromkeys(s["way"] for s in samples):
        jobs = _in_jobs([s for s in samples if s["way"] == way])
        text = f"from COMMIT to the served row, {_WAYS[way]}: {jobs:.1f} trivial Spark jobs (at most {MOST_JOBS:g})"
        lines.append(_verdict(jobs <= MOST_JOBS, text))
    return lines


# Ticks that find nothing


def _idle_cases(samples: Samples) -> dict[str, float]:
    return {
        c: median(s["tick_ms"] for s in samples if s["case"] == c) for c in dict.fromkeys(s["case"] for s in samples)
    }


def _idle_table(samples: Samples, result: Mapping[str, Any]) -> TableOf:
    lines: list[tuple[str, ...]] = [(case, f"{ms:.2f}") for case, ms in _idle_cases(samples).items()]
    title = f"A tick that finds nothing, {result['sizes']['idle_tables']} captured tables"
    return title, ("since the last tick", "ms"), lines


def _idle_verdicts(samples: Samples) -> list[str]:
    return [
        _verdict(ms < MOST_IDLE_MS, f"a tick that finds nothing, {case}: {ms:.2f} ms (under {MOST_IDLE_MS:g})")
        for case, ms in _idle_cases(samples).items()
    ]


# The first load


def _sizes(samples: Samples) -> list[int]:
    return sorted({s["rows"] for s in samples})


def _loading(samples: Samples, rows: int) -> tuple[float, float, float, float]:
    here = [s for s in samples if s["rows"] == rows]
    load, copy, parse, write = (median(s[part] for s in here) for part in ("load", "copy", "parse", "write"))
    return load, copy, parse, write


def _loading_table(samples: Samples) -> TableOf:
    lines = []
    for rows in _sizes(samples):
        load, copy, parse, write = _loading(samples, rows)
        whole = copy + parse + write
        cells = [f"{rows:,}", *(f"{s:.2f}" for s in (load, whole, copy, parse, write))]
        lines.append((*cells, f"{load / whole:.2f} x", f"{load / (copy + write):.2f} x"))
    columns = ("rows", "load s", "yardstick s", "COPY", "parsing", "Parquet", "load / yardstick", "without parsing")
    return "The first load of a table of 8 columns", columns, lines


def _loading_verdicts(samples: Samples) -> list[str]:
    lines = []
    for rows in _sizes(samples):
        load, *parts = _loading(samples, rows)
        text = f"first load of {rows:,} rows: {load / sum(parts):.2f} times COPY and Parquet (at most {MOST_COPIES:g})"
        lines.append(_verdict(load / sum(parts) <= MOST_COPIES, text))
    return lines


def _figure(pyplot: ModuleType, samples: Samples) -> Any:
    """What capture adds to a row, a panel for bulk statements and one for single rows."""
    figure, axes = pyplot.subplots(1, len(MOST_US), figsize=(9, 3.4))
    for axis, (size, most) in zip(axes, MOST_US.items(), strict=True):
        statements = [statement for s, statement in _kinds(samples) if s == size]
        for shift, way in ((-0.2, "trigger"), (0.2, "wal")):
            heights = [median(added(samples, way, size, statement, "cpu_us")) for statement in statements]
            axis.bar([p + shift for p in range(len(statements))], heights, width=0.4, label=_WAYS[way])
        axis.axhline(most, color="grey", linestyle="--", label="target")
        axis.set_xticks(range(len(statements)), statements)
        axis.set(title=f"{size}: what capture adds", ylabel="µs of CPU a row")
        axis.legend(fontsize=7)
    return figure
