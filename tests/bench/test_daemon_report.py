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


def test_targets_of_a_row_s_age(tmp_path: Path) -> None:
    def ages(schedule: str, *ages: float, refreshes: float = 1.2) -> dict[str, Any]:
        sample = {"schedule": schedule, "rows": 10, "seconds": 1.0, "age_seconds": ages}
        return idle() | {"idle": [], "latency": [sample | {"refreshes_per_second": refreshes}]}

    def found(result: dict[str, Any]) -> list[str]:
        del result["idle"]
        return verdicts(result, tmp_path)

    assert found(ages("1s", *[0.7] * 50)) == ["reached"] * 3
    assert found(ages("1s", *[0.9] * 50)) == ["MISSED", "reached", "reached"]
    assert found(ages("1s", *[0.7] * 48, 1.6, 1.6)) == ["reached", "MISSED", "reached"]
    assert found(ages("1s", *[0.7] * 50, refreshes=1.6)) == ["reached", "reached", "MISSED"]
    assert found(ages("300ms", *[0.49] * 50)) == ["reached"]
    assert found(ages("300ms", *[0.51] * 50)) == ["MISSED"]


def test_targets_of_passes_and_commands(tmp_path: Path) -> None:
    modes = [{"round": 1, "mode": "off", "seconds": 1.4}, {"round": 1, "mode": "on", "seconds": 1.0}]
    named = ('python -c "import typer, rich"', "millstream refresh")
    commands = [{"round": 1, "command": name, "seconds": 0.1 * n} for n, name in enumerate(named, start=1)]
    result = {name: value for name, value in idle().items() if name != "idle"}
    assert verdicts(result | {"side_by_side": modes, "client": commands}, tmp_path) == ["reached", "reached"]
    modes[0]["seconds"], commands[1]["seconds"] = 1.3, 0.21
    assert verdicts(result | {"side_by_side": modes, "client": commands}, tmp_path) == ["MISSED", "MISSED"]


def test_files(tmp_path: Path) -> None:
    write_report(idle(), tmp_path, quick=False)
    assert json.loads((tmp_path / "daemon.json").read_text())["idle"][0]["wakes"] == 22
    page = (tmp_path / "daemon.md").read_text()
    assert "4.0 % of one core" in page
    assert "| 1 | 2.50 | 1.50 | 1.10 | 1.10 | 0.00 | 0 | 0.40 |" in page
