"""TPC-H's page: a line per query, the verdict against the targets, a plot, and the raw data they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from millstream.bench.page import Summary, write

if TYPE_CHECKING:
    from types import ModuleType

Samples = Sequence[Mapping[str, Any]]

LEAST_FASTER = 16
MOST_SLOWER = 2.0
_PHASES = ("read", "plan", "compute", "commit")
_NOTES = (
    "The last columns divide DIFFERENTIAL's milliseconds: finding what to read; parsing and analysing the steps;",
    "optimising and running them; committing; the rest (catalog, logs, choice).",
)


def write_report(result: Mapping[str, Any], out: Path, *, quick: bool) -> Summary:
    """Write raw data, plot and page to `out`; those of a quick run have another name than those of a full run."""
    summary = summarise(result)
    page = out / ("tpch-quick.md" if quick else "tpch.md")
    write(result, summary, page, "TPC-H benchmark", _NOTES, lambda pyplot: _figure(pyplot, result["samples"]))
    return summary


def summarise(result: Mapping[str, Any]) -> Summary:
    """Medians per query, and the targets."""
    samples: Samples = result["samples"]
    columns = ("query", "FULL ms", "DIFF ms", "faster", "jobs", "FULL jobs", "rows read", *_PHASES, "other")
    lines = [_line(samples, name) for name in _queries(samples)]
    title = f"TPC-H at scale factor {result['scale']:g}, {result['fraction']:.1%} of orders and lineitem changed"
    return Summary([(title, columns, lines)], _verdicts(samples))


def _queries(samples: Samples) -> list[str]:
    return list(dict.fromkeys(s["query"] for s in samples))


def _of(samples: Samples, query: str, mode: str) -> list[Mapping[str, Any]]:
    return [s for s in samples if (s["query"], s["mode"]) == (query, mode)]


def typical(samples: Samples, query: str, mode: str) -> float:
    """The median time of a query's refreshes in milliseconds."""
    return float(median(s["ms"] for s in _of(samples, query, mode)))


def _line(samples: Samples, query: str) -> tuple[str, ...]:
    full, diff = typical(samples, query, "FULL"), typical(samples, query, "DIFFERENTIAL")
    runs = _of(samples, query, "DIFFERENTIAL")
    phases = [median(s["phases"].get(phase, 0.0) for s in runs) for phase in _PHASES]
    other = median(s["ms"] - sum(s["phases"].get(phase, 0.0) for phase in _PHASES) for s in runs)
    return (
        query,
        f"{full:,.0f}",
        f"{diff:,.0f}",
        f"{full / diff:.1f} x" if runs[-1]["action"] != "NO_DATA" else "no data",
        str(runs[-1]["jobs"] or 0),
        str(_of(samples, query, "FULL")[-1]["jobs"] or 0),
        f"{runs[-1]['rows_read']:,}",
        *(f"{ms:,.0f}" for ms in (*phases, other)),
    )


def _verdicts(samples: Samples) -> list[str]:
    queries = _queries(samples)
    ratios = {q: typical(samples, q, "DIFFERENTIAL") / typical(samples, q, "FULL") for q in queries}
    faster = [q for q in queries if ratios[q] < 1]
    idle = [q for q in queries if _of(samples, q, "DIFFERENTIAL")[-1]["action"] == "NO_DATA"]
    worst = max(queries, key=lambda q: ratios[q])
    return [
        f"{_reached(len(faster) >= LEAST_FASTER)}  DIFFERENTIAL faster on {len(faster)} of {len(queries)} "
        f"(at least {LEAST_FASTER}); {', '.join(idle) or 'none'} of them had nothing to do",
        f"{_reached(ratios[worst] <= MOST_SLOWER)}  the slowest, {worst}: {ratios[worst]:.2f} times FULL "
        f"(at most {MOST_SLOWER:g})",
        f"         all queries together: FULL {_sum(samples, 'FULL'):,.0f} ms, "
        f"DIFFERENTIAL {_sum(samples, 'DIFFERENTIAL'):,.0f} ms",
    ]


def _reached(reached: bool) -> str:
    return "reached" if reached else "MISSED "


def _sum(samples: Samples, mode: str) -> float:
    return sum(typical(samples, q, mode) for q in _queries(samples))


def _figure(pyplot: ModuleType, samples: Samples) -> Any:
    """Two bars per query."""
    queries = _queries(samples)
    figure, axis = pyplot.subplots(figsize=(9, 3.4))
    for shift, mode in ((-0.2, "FULL"), (0.2, "DIFFERENTIAL")):
        places = [position + shift for position in range(len(queries))]
        axis.bar(places, [typical(samples, q, mode) for q in queries], width=0.4, label=mode.lower())
    axis.set_xticks(range(len(queries)), queries, fontsize=7)
    axis.set_ylabel("ms")
    axis.grid(visible=True, axis="y", alpha=0.3)
    axis.legend(fontsize=7)
    return figure
