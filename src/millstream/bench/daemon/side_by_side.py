"""What refreshing side by side gains: eight independent small aggregates with 100 changes each, in one pass."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from millstream.bench.daemon.section import Bench, Samples, Section, verdict
from millstream.bench.page import TableOf
from millstream.results import Action

if TYPE_CHECKING:
    from millstream.service import Millstream

TABLES = 8
CHANGES = 100
_LEAST_GAIN = 1.4
_MODES = ("off", "on")


@dataclass(frozen=True, slots=True)
class Sample:
    """One pass over all tables; `mode` is the setting parallel_refresh_mode."""

    round: int
    mode: str
    seconds: float


def _measure(bench: Bench) -> list[Sample]:
    rows, rounds = (1_000, 1) if bench.is_quick else (100_000, 5)
    directory = bench.directory / "side_by_side"
    directory.mkdir()
    samples: list[Sample] = []
    with bench.opened(directory) as ms:
        bench.announce(f"creating {TABLES} tables")
        for number in range(TABLES):
            ms.sql(f"CREATE TABLE s{number} USING delta AS SELECT id, CAST(id % 97 AS INT) AS k, CAST(id AS INT) AS v "
                   f"FROM range({rows})")  # fmt: skip
            query = f"SELECT k, SUM(v) AS s, COUNT(*) AS n FROM s{number} GROUP BY k"
            ms.create_stream_table(f"a{number}", query, refresh_mode="DIFFERENTIAL")
        for number in range(rounds + 1):  # the first round warms both up
            for mode in _MODES:
                bench.announce(f"refreshing with parallel_refresh_mode {mode}, round {number} of {rounds}")
                taken = _pass(ms, directory, mode, number)
                if number or bench.is_quick:
                    samples.append(Sample(number, mode, taken))
    return samples


def _pass(ms: Millstream, directory: Path, mode: str, number: int) -> float:
    """The seconds that one pass over changed tables takes."""
    (directory / "millstream.toml").write_text(f'[millstream]\nparallel_refresh_mode = "{mode}"\n')
    ms.reload_settings()
    first = CHANGES * (2 * number + _MODES.index(mode))
    for table in range(TABLES):
        ms.sql(f"UPDATE s{table} SET v = v + 1 WHERE id >= {first} AND id < {first + CHANGES}")
    began = time.perf_counter()
    outcomes = ms.refresh_stream_tables()
    taken = time.perf_counter() - began
    if not all(o.result is not None and o.result.action is Action.DIFFERENTIAL for o in outcomes):
        raise AssertionError(f"a table was not refreshed by its delta: {outcomes}")
    return round(taken, 4)


def _seconds(samples: Samples, mode: str) -> float:
    return float(median(s["seconds"] for s in samples if s["mode"] == mode))


def _gain(samples: Samples) -> float:
    return _seconds(samples, "off") / _seconds(samples, "on")


def _table(samples: Samples) -> TableOf:
    named = {"off": "one after another", "on": "side by side"}
    rows: list[tuple[str, ...]] = [
        (
            named[mode],
            f"{_seconds(samples, mode) * 1000:.0f}",
            f"{_seconds(samples, 'off') / _seconds(samples, mode):.2f}",
        )
        for mode in _MODES
    ]
    title = f"A pass over {TABLES} independent aggregates with {CHANGES} changes each"
    return title, ("refreshed", "median ms", "times faster"), rows


def _verdicts(samples: Samples) -> list[str]:
    gain = _gain(samples)
    return [verdict(gain >= _LEAST_GAIN, f"side by side {gain:.2f} times faster (at least {_LEAST_GAIN:g})")]


SECTION = Section("side_by_side", _measure, _table, _verdicts)
