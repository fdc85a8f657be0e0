"""TPC-H's report: medians per query, and verdicts that can be missed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.bench.tpch.report import summarise, write_report

if TYPE_CHECKING:
    from pathlib import Path


def sample(query: str, mode: str, ms: float, action: str = "DIFFERENTIAL") -> dict[str, Any]:
    phases = {"read": 10.0, "plan": 20.0, "compute": ms / 2, "commit": 5.0} if action != "NO_DATA" else {}
    return {
        "query": query,
        "mode": mode,
        "cycle": 1,
        "action": action,
        "ms": ms,
        "jobs": 3,
        "rows_read": 1_234,
        "phases": phases,
    }


def result(times: dict[str, tuple[float, float]], idle: tuple[str, ...] = ()) -> dict[str, Any]:
    samples = []
    for query, (full, diff) in times.items():
        for factor in (0.5, 1.0, 4.0):
            samples.append(sample(query, "FULL", full * factor, "FULL"))
            action = "NO_DATA" if query in idle else "DIFFERENTIAL"
            samples.append(sample(query, "DIFFERENTIAL", diff * factor, action))
    machine = {"cores": 2, "system": "Linux", "python": "3"}
    return {"date": "2026-01-01", "machine": machine, "scale": 1, "fraction": 0.001, "samples": samples}


def test_the_median_counts() -> None:
    ((title, columns, rows),) = summarise(result({"q1": (1000.0, 250.0), "q2": (100.0, 5.0)}, idle=("q2",))).tables
    assert "scale factor 1" in title
    assert dict(zip(columns, rows[0], strict=True)) == {
        "query": "q1",
        "FULL ms": "1,000",
        "DIFF ms": "250",
        "faster": "4.0 x",
        "jobs": "3",
        "FULL jobs": "3",
        "rows read": "1,234",
        "read": "10",
        "plan": "20",
        "compute": "125",
        "commit": "5",
        "other": "90",
    }
    assert rows[1][3] == "no data"


def test_verdicts() -> None:
    fast = {f"q{n}": (1000.0, 100.0) for n in range(1, 17)}
    reached = summarise(result({**fast, "q17": (1000.0, 1999.0)})).verdicts
    assert reached[0].startswith("reached  DIFFERENTIAL faster on 16 of 17")
    assert reached[1].startswith("reached  the slowest, q17: 2.00 times FULL")
    missed = summarise(result({**fast, "q16": (1000.0, 2100.0)}, idle=("q1",))).verdicts
    assert missed[0].startswith("MISSED   DIFFERENTIAL faster on 15 of 16")
    assert "q1 of them had nothing to do" in missed[0]
    assert missed[1].startswith("MISSED   the slowest, q16: 2.10 times FULL")


def test_raw_data_plot_and_page_lie_together(tmp_path: Path) -> None:
    measured = result({"q1": (1000.0, 250.0)})
    write_report(measured, tmp_path / "out", quick=False)
    assert json.loads((tmp_path / "out" / "tpch.json").read_text()) == measured
    page = (tmp_path / "out" / "tpch.md").read_text()
    assert "| q1 | 1,000 | 250 | 4.0 x |" in page
    assert "(tpch.png)" in page
    assert (tmp_path / "out" / "tpch.png").stat().st_size > 1_000
