"""The benchmark's page: tables, verdicts against the targets, a plot, and the raw data they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from millstream.bench.page import Summary, write

if TYPE_CHECKING:
    from types import ModuleType

Samples = Sequence[Mapping[str, Any]]


def write_report(result: Mapping[str, Any], out: Path, *, quick: bool) -> Summary:
    """Write raw data, plot and page to `out`; those of a quick run have another name than those of a full run."""
    summary = summarise(result)
    notes = [f"A trivial Spark job took {result['trivial_job_ms']:.0f} ms."]
    page = out / ("quick.md" if quick else "refresh.md")
    write(result, summary, page, "Refresh benchmark", notes, lambda pyplot: _figure(pyplot, result["samples"]))
    return summary


def summarise(result: Mapping[str, Any]) -> Summary:
    """Medians per cell, and the targets."""
    samples: Samples = result["samples"]
    summary = Summary()
    for rows in sorted({s["rows"] for s in samples}):
        lines = []
        for query in dict.fromkeys(s["query"] for s in samples if s["rows"] == rows):
            for changes in sorted({s["changes"] for s in samples if s["rows"] == rows}):
                lines.append(_line(samples, query, rows, changes))
        columns = ("query", "changed", "FULL ms", "DIFF ms", "faster", "AUTO ms", "AUTO took", "jobs", "rows read")
        summary.tables.append((f"{rows:,} rows", columns, lines))
    summary.verdicts = _verdicts(result)
    return summary


def cell(samples: Samples, query: str, mode: str, rows: int, changes: int) -> list[Mapping[str, Any]]:
    """All measurements of one cell."""
    wanted = (query, mode, rows, changes)
    return [s for s in samples if (s["query"], s["mode"], s["rows"], s["changes"]) == wanted]


def typical(samples: Samples, query: str, mode: str, rows: int, changes: int) -> float | None:
    """The median of one cell in milliseconds."""
    found = [s["ms"] for s in cell(samples, query, mode, rows, changes)]
    return median(found) if found else None


def _line(samples: Samples, query: str, rows: int, changes: int) -> tuple[str, ...]:
    full, diff, auto = (typical(samples, query, m, rows, changes) for m in ("FULL", "DIFFERENTIAL", "AUTO"))
    runs, autos = cell(samples, query, "DIFFERENTIAL", rows, changes), cell(samples, query, "AUTO", rows, changes)
    return (
        query,
        f"{changes:,}",
        _ms(full),
        _ms(diff),
        f"{full / diff:.1f} x" if full and diff else "",
        _ms(auto),
        ", ".join(dict.fromkeys(s["action"] for s in autos)),
        str(runs[-1]["jobs"]) if runs else "",
        f"{runs[-1]['rows_read']:,}" if runs else "",
    )


def _ms(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None else ""


def _verdicts(result: Mapping[str, Any]) -> list[str]:
    samples: Samples = result["samples"]
    lines = [_verdict("NO_DATA median", median(result["no_data_ms"]), 5.0, "ms")]
    trivial = result["trivial_job_ms"]
    small = typical(samples, "aggregate", "DIFFERENTIAL", 100_000, 100)
    if small is not None:
        lines.append(_verdict("100 changes in 100 K rows, aggregate, in trivial Spark jobs", small / trivial, 4.0, "x"))
    for query, target in (("aggregate", 5), ("join_agg", 5), ("join", 2), ("filter", 2), ("scan", 2)):
        full, diff = (typical(samples, query, m, 10_000_000, 1_000) for m in ("FULL", "DIFFERENTIAL"))
        if full and diff:
            lines.append(
                _verdict(
                    f"10 M rows, 0.01 % changed, {query}: FULL / DIFFERENTIAL", full / diff, target, "x", above=True
                )
            )
    for query in ("aggregate", "groups"):
        one, ten = (typical(samples, query, "DIFFERENTIAL", rows, 1_000) for rows in (1_000_000, 10_000_000))
        if one and ten:
            lines.append(_verdict(f"1,000 changes, {query}: growth from 1 M to 10 M rows", ten / one, 1.5, "x"))
    return [*lines, _auto_verdict(samples)]


def _auto_verdict(samples: Samples) -> str:
    """AUTO is never more than 20 % plus 100 ms slower than the better mode."""
    worst, where = 0.0, ""
    cells = dict.fromkeys((s["query"], s["rows"], s["changes"]) for s in samples)
    for query, rows, changes in cells:
        full, diff, auto = (typical(samples, query, m, rows, changes) for m in ("FULL", "DIFFERENTIAL", "AUTO"))
        if full and diff and auto:
            over = auto - (min(full, diff) * 1.2 + 100)
            if over > worst:
                worst, where = over, f" ({query}, {rows:,} rows, {changes:,} changed)"
    return (
        f"{'reached' if worst <= 0 else 'MISSED '}  AUTO beyond the better mode + 20 % + 100 ms: {worst:,.0f} ms{where}"
    )


def _verdict(what: str, value: float, target: float, unit: str, *, above: bool = False) -> str:
    reached = value >= target if above else value <= target
    sign = "at least" if above else "at most"
    return f"{'reached' if reached else 'MISSED '}  {what}: {value:.2f} {unit} ({sign} {target:g})"


def _figure(pyplot: ModuleType, samples: Samples) -> Any:
    """Time against changed rows, a panel per query."""
    queries = list(dict.fromkeys(s["query"] for s in samples))
    sizes = sorted({s["rows"] for s in samples})
    figure, axes = pyplot.subplots(1, len(queries), figsize=(3.2 * len(queries), 3.4), sharey=True, squeeze=False)
    for axis, query in zip(axes[0], queries, strict=True):
        for shade, rows in enumerate(sizes):
            for mode, style in (("FULL", "--"), ("DIFFERENTIAL", "-")):
                changes = sorted({s["changes"] for s in samples if s["rows"] == rows})
                times = [typical(samples, query, mode, rows, c) for c in changes]
                axis.plot(changes, times, style, color=f"C{shade}", marker=".", label=f"{rows:,} {mode.lower()}")
        axis.set(title=query, xscale="log", yscale="log", xlabel="rows changed")
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("ms")
    axes[0][-1].legend(fontsize=6)
    return figure
