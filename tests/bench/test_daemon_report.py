"""The report of the running process: targets can be missed, and raw data is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.bench.daemon.run import write_report

if TYPE_CHECKING:
    from pathlib import Path


def idle(**changes: Any) -> dict[str, Any]:
    sample = {
        "round": 1,
        "tables": 100,
        "seconds": 20.0,
        "python_percent": 2.5,
        "jvm_percent": 1.5,
        "jobs": 0,
        "wakes": 22,
        "writes": 22,
        "passes": 0,
        "oldest_seconds": 0.4,
    }
    machine = {"cores": 2, "system": "Linux", "python": "3.11"}
    return {"date": "2026-01-01", "machine": machine, "idle": [sample | changes]}


def verdicts(result: dict[str, Any], out: Path) -> list[str]:
    return [line.split()[0] for line in write_report(result, out, quick=False).verdicts]


def test_targets(tmp_path: Path) -> None:
    assert verdicts(idle(), tmp_path) == ["reached"] * 3
    assert verdicts(idle(jvm_percent=2.5), tmp_path) == ["MISSED", "reached", "reached"]
    assert verdicts(idle(jobs=1), tmp_path) == ["reached", "MISSED", "reached"]
    assert verdicts(idle(writes=44), tmp_path) == ["reached", "reached", "MISSED"]


def test_files(tmp_path: Path) -> None:
    write_report(idle(), tmp_path, quick=False)
    assert json.loads((tmp_path / "daemon.json").read_text())["idle"][0]["wakes"] == 22
    page = (tmp_path / "daemon.md").read_text()
    assert "4.0 % of one core" in page
    assert "| 1 | 2.50 | 1.50 | 1.10 | 1.10 | 0.00 | 0 | 0.40 |" in page
