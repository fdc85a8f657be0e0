"""How old a row is when readers see its effect: one row every 100 ms, an aggregate over a million rows, served."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

from millstream.bench.daemon.section import Bench, Samples, Section, verdict
from millstream.bench.page import TableOf
from millstream.bench.postgres.shop import Shop, new_shop
from millstream.results import Action
from millstream.service.daemon.background import running

if TYPE_CHECKING:
    from millstream.service import Millstream

DATABASE = "latency"
_EVERY_SECONDS = 0.1
_LOOK_SECONDS = 0.005
_PATIENCE_SECONDS = 60.0
_TARGETS = {"1s": {"p50": 0.8, "p99": 1.5, "refreshes": 1.5}, "300ms": {"p50": 0.5}}


@dataclass(frozen=True, slots=True)
class Sample:
    """A while of commits.

    Args:
        age_seconds: of each row, from the end of its COMMIT until the served table showed it.
        refreshes_per_second: those that changed something.
    """

    schedule: str
    rows: int
    seconds: float
    age_seconds: tuple[float, ...]
    refreshes_per_second: float


def _measure(bench: Bench) -> list[Sample]:
    rows, seconds, warm_up = (1_000, 4.0, 2.0) if bench.is_quick else (1_000_000, 30.0, 15.0)
    directory = bench.directory / "latency"
    directory.mkdir()
    (directory / "millstream.toml").write_text("[millstream]\nmin_schedule_seconds = 0.1\n")
    samples: list[Sample] = []
    with bench.opened(directory) as ms:
        shop = new_shop(bench.server)
        _create(ms, shop, rows)
        for schedule in _TARGETS:
            ms.alter_stream_table("latest", schedule=schedule)
            with running(ms):
                bench.announce(f"committing rows under a schedule of {schedule}")
                _commits(shop, warm_up)
                samples.append(_sample(ms, shop, schedule, rows, seconds))
    return samples


def _create(ms: Millstream, shop: Shop, rows: int) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, amount int NOT NULL)")
        owner.execute(
            f"INSERT INTO orders SELECT i, i % 1000, i % 90 FROM generate_series(1, {rows}) AS i (i)".encode()
        )
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    ms.attach(DATABASE, str(shop.address), cdc="trigger")
    query = f"SELECT customer, SUM(amount) AS total, MAX(id) AS newest FROM {DATABASE}.public.orders GROUP BY customer"
    ms.create_stream_table("latest", query, "1s", "DIFFERENTIAL", serve_to=f"{DATABASE}.public.latest", dialect="spark")


def _sample(ms: Millstream, shop: Shop, schedule: str, rows: int, seconds: float) -> Sample:
    last = ms.refresh_history("latest", 1)[0].refresh_id
    with _watched(shop) as seen:
        committed = _commits(shop, seconds)
        end = time.monotonic() + _PATIENCE_SECONDS
        while not seen or seen[-1][0] < max(committed):
            if time.monotonic() > end:
                raise TimeoutError("the served table does not show the last row")
            time.sleep(_LOOK_SECONDS)
    later = [r for r in ms.refresh_history("latest", 1000) if r.refresh_id > last and r.action is not Action.NO_DATA]
    ages = [next(at for newest, at in seen if newest >= row) - moment for row, moment in committed.items()]
    return Sample(schedule, rows, seconds, tuple(round(age, 4) for age in ages), round(len(later) / seconds, 2))


def _commits(shop: Shop, seconds: float) -> dict[int, float]:
    """Commit a row every 100 ms; returns when each was committed."""
    committed: dict[int, float] = {}
    with shop.owner() as owner:
        row = owner.execute("SELECT max(id) FROM orders").fetchone()
        assert row is not None
        number, began = int(row[0]), time.monotonic()
        while time.monotonic() < began + seconds:
            number += 1
            owner.execute("INSERT INTO orders VALUES (%s, %s, 1)", [number, number % 1000])
            committed[number] = time.monotonic()
            time.sleep(max(0.0, began + len(committed) * _EVERY_SECONDS - time.monotonic()))
    return committed


@contextmanager
def _watched(shop: Shop) -> Iterator[list[tuple[int, float]]]:
    """The newest row that the served table shows, each time it is another one, and when that was."""
    seen: list[tuple[int, float]] = []
    ended = threading.Event()

    def watch() -> None:
        with shop.server.superuser(shop.name) as reader:  # the served table belongs to millstream's role
            while not ended.wait(_LOOK_SECONDS):
                row = reader.execute("SELECT max(newest)::text FROM latest").fetchone()
                if row is not None and row[0] is not None and (not seen or int(str(row[0])) > seen[-1][0]):
                    seen.append((int(str(row[0])), time.monotonic()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _percentiles(sample: dict[str, object]) -> dict[str, float]:
    ages = sample["age_seconds"]
    assert isinstance(ages, list | tuple)
    cuts = quantiles(ages, n=100, method="inclusive")
    refreshes = sample["refreshes_per_second"]
    assert isinstance(refreshes, float | int)
    return {"p50": cuts[49], "p99": cuts[98], "refreshes": float(refreshes)}


def _table(samples: Samples) -> TableOf:
    rows: list[tuple[str, ...]] = []
    for sample in samples:
        found = _percentiles(dict(sample))
        cells = (f"{found['p50']:.2f}", f"{found['p99']:.2f}", f"{found['refreshes']:.2f}")
        rows.append((sample["schedule"], str(len(sample["age_seconds"])), *cells))
    title = f"A row committed every 100 ms; an aggregate over {samples[0]['rows']:,} rows, served where it is captured"
    return title, ("schedule", "rows committed", "age p50 s", "age p99 s", "refreshes/s"), rows


def _verdicts(samples: Samples) -> list[str]:
    lines: list[str] = []
    for sample in samples:
        found, named = _percentiles(dict(sample)), {"refreshes": "refreshes a second"}
        for name, limit in _TARGETS[sample["schedule"]].items():
            text = (
                f"a row's age under {sample['schedule']}: {named.get(name, name)} {found[name]:.2f} (at most {limit:g})"
            )
            lines.append(verdict(found[name] <= limit, text))
    return lines


SECTION = Section("latency", _measure, _table, _verdicts)
