"""PostgreSQL's report: what capture adds is compared round by round, and verdicts can be missed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.bench.postgres.report import added, summarise, write_report

if TYPE_CHECKING:
    from pathlib import Path

KINDS = [(size, statement) for size in ("bulk", "single") for statement in ("INSERT", "UPDATE", "DELETE")]


def overhead(trigger: dict[str, float], wal: float = 0.0) -> list[dict[str, Any]]:
    """Rounds on a machine that gets slower and slower, of which nothing may be seen in what capture adds."""
    samples = []
    for size, statement in KINDS:
        for number in (1, 2, 3):
            base = 10.0 * number
            more = {
                "none": 0.0,
                "none_again": (-0.1, 0.0, 0.1)[number - 1],
                "trigger": trigger[size],
                "wal": wal,
                "none_replica": -1.0,
            }
            for way, extra in more.items():
                samples.append(
                    {
                        "way": way,
                        "size": size,
                        "statement": statement,
                        "round": number,
                        "rows": 10,
                        "wall_us": base * 2 + extra,
                        "cpu_us": base + extra,
                    }
                )
    return samples


def result(
    *,
    bulk: float = 2.0,
    single: float = 20.0,
    wal: float = 0.05,
    row_ms: float = 100.0,
    busy: float = 4.0,
    load: float = 3.0,
) -> dict[str, Any]:
    return {
        "date": "2026-01-01",
        "machine": {"cores": 2, "system": "Linux", "python": "3"},
        "sizes": {"served_rows": 1_000_000, "idle_tables": 50},
        "overhead": overhead({"bulk": bulk, "single": single}, wal),
        "latency": [
            {"way": way, "round": n, "trivial_ms": 20.0, "row_ms": row_ms * f, "refresh_ms": 120.0, "phases": {}}
            for way in ("trigger", "wal")
            for n, f in enumerate((0.5, 1.0, 4.0))
        ],
        "idle": [
            {"case": case, "round": n, "tick_ms": ms * f}
            for case, ms in (("still", 1.0), ("busy", busy))
            for n, f in enumerate((0.5, 1.0, 4.0))
        ],
        "loading": [{"rows": 2_000_000, "round": 1, "load": load, "copy": 1.0, "parse": 0.5, "write": 0.5}],
    }


def missed(**changes: float) -> list[str]:
    return [line.removeprefix("MISSED   ") for line in summarise(result(**changes)).verdicts if "MISSED" in line]


def test_capture_is_compared_with_no_capture_in_the_same_round() -> None:
    samples = overhead({"bulk": 2.0, "single": 20.0})
    assert [round(us, 6) for us in added(samples, "trigger", "single", "UPDATE", "cpu_us")] == [20.0, 20.0, 20.0]
    table = summarise(result()).tables[0]
    assert table[2][0] == (
        "bulk INSERT",
        "40.00 / 20.00",
        "+0.00 / +0.00",
        "+2.00 / +2.00",
        "+0.05 / +0.05",
        "-1.00 / -1.00",
        "0.10",
    )


def test_every_target_can_be_missed() -> None:
    assert missed() == []
    assert [line.split(":")[0] for line in missed(bulk=2.6)] == [f"trigger, bulk {s}" for _, s in KINDS[:3]]
    assert [line.split(":")[0] for line in missed(single=25.1)] == [f"trigger, single {s}" for _, s in KINDS[3:]]
    assert len(missed(wal=0.11)) == len(KINDS)
    assert missed(row_ms=121.0)[0] == "from COMMIT to the served row, trigger: 6.0 trivial Spark jobs (at most 6)"
    assert missed(busy=5.0) == ["a tick that finds nothing, busy: 5.00 ms (under 5)"]
    assert missed(load=3.1) == ["first load of 2,000,000 rows: 1.55 times COPY and Parquet (at most 1.5)"]


def test_raw_data_plot_and_page_lie_together(tmp_path: Path) -> None:
    measured = result()
    write_report(measured, tmp_path, quick=False)
    assert json.loads((tmp_path / "postgres.json").read_text()) == measured
    page = (tmp_path / "postgres.md").read_text()
    assert "| 2,000,000 | 3.00 | 2.00 | 1.00 | 0.50 | 0.50 | 1.50 x | 2.00 x |" in page
    assert "![What capture adds to a row](postgres.png)" in page
    assert (tmp_path / "postgres.png").stat().st_size > 1_000
