"""What every benchmark writes: raw data, a plot, a page that cites them, and the same lines on the screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from millstream.cli.output import Output

TableOf = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
Draw = Callable[["ModuleType"], Any]
"""Draws a figure with matplotlib's `pyplot`, and returns it."""


@dataclass
class Summary:
    """What is printed and written: tables, and a line per target."""

    tables: list[TableOf] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)


def show(output: Output, result: Mapping[str, Any], summary: Summary) -> None:
    """Print the summary, or the raw data for programs."""
    for title, columns, rows in summary.tables:
        output.table(title, columns, rows)
    for line in summary.verdicts:
        output.line(line)
    output.document(result)


def write(
    result: Mapping[str, Any],
    summary: Summary,
    to: Path,
    title: str,
    notes: Sequence[str],
    draw: Draw | None,
    caption: str = "FULL against DIFFERENTIAL",
) -> None:
    """Write the page `to`, and beside it the raw data and the plot under the same name."""
    to.parent.mkdir(parents=True, exist_ok=True)
    raw, picture = to.with_suffix(".json"), to.with_suffix(".png")
    raw.write_text(json.dumps(result, indent=1) + "\n")
    machine = result["machine"]
    parts = [
        f"# {title}",
        "",
        f"Measured on {result['date']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']},",
        f"in one process, interleaved; medians. Raw data: [{raw.name}]({raw.name}).",
        *notes,
        "",
        *(f"- {line.strip()}" for line in summary.verdicts),
        "",
    ]
    if draw is not None and _drawn(draw, picture):
        parts += [f"![{caption}]({picture.name})", ""]
    for name, columns, rows in summary.tables:
        parts += [f"## {name}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        parts += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    to.write_text("\n".join(parts))


def _drawn(draw: Draw, path: Path) -> bool:
    """Save a figure; False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw(pyplot)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
