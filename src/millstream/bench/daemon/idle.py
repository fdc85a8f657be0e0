"""What it costs to keep 100 tables fresh while nothing is written: CPU time, Spark jobs, catalog writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from millstream.bench.daemon.cpu import cpu_seconds
from millstream.bench.daemon.section import Bench, Samples, Section, verdict
from millstream.bench.page import TableOf
from millstream.bench.postgres.shop import Shop, new_shop
from millstream.service.daemon.background import running

if TYPE_CHECKING:
    from millstream.service import Millstream
    from millstream.service.daemon.loop import Activity

DATABASE = "idle"
_PATIENCE_SECONDS = 600.0
_SETTLING_SECONDS = 10.0
MOST_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A few seconds of an idle lake.

    Args:
        tables: how many stream tables there are.
        python_percent: CPU time of the Python process, in percent of one core.
        jobs: Spark jobs that were started.
        wakes: how often the loop asked what is due.
        writes: transactions that wrote the catalog.
        passes: passes that were started, because a look did not suffice.
        oldest_seconds: the age of the oldest contents at the end.
    """

    round: int
    tables: int
    seconds: float
    python_percent: float
    jvm_percent: float
    jobs: int
    wakes: int
    writes: int
    passes: int
    oldest_seconds: float


def _measure(bench: Bench) -> list[Sample]:
    sources, tables, served, seconds, rounds = (4, 8, 1, 3.0, 1) if bench.is_quick else (40, 100, 10, 20.0, 3)
    with bench.opened(bench.directory / "idle") as ms:
        create(ms, new_shop(bench.server), sources, tables, served, bench.announce)
        return watch(ms, seconds, rounds, bench.announce)


def watch(ms: Millstream, seconds: float, rounds: int, announce: Callable[[str], None]) -> list[Sample]:
    """Run the daemon in this process, and measure it once it has come to rest."""
    activities: list[Activity] = []
    samples: list[Sample] = []
    with running(ms, activities.append), _counted_writes(ms) as writes:
        announce("waiting until every table was looked at")
        _settle(ms)
        for number in range(1, rounds + 1):
            announce(f"doing nothing for {seconds:g} s, round {number} of {rounds}")
            first_job = _job_id(ms)
            seen, written, cpu, began = len(activities), len(writes), cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            used, elapsed = cpu_seconds().since(cpu), time.perf_counter() - began
            watched = activities[seen:]
            samples.append(
                Sample(
                    round=number,
                    tables=len(ms.status()),
                    seconds=round(elapsed, 3),
                    python_percent=round(100 * used.python / elapsed, 2),
                    jvm_percent=round(100 * used.jvm / elapsed, 2),
                    wakes=len(watched),
                    writes=len(writes) - written,
                    passes=sum(len(activity.decision.passes) for activity in watched),
                    oldest_seconds=round(max(s.staleness or 0.0 for s in ms.status()), 3),
                    jobs=_job_id(ms) - first_job - 1,
                )
            )
    return samples


def create(ms: Millstream, shop: Shop, sources: int, tables: int, served: int, announce: Callable[[str], None]) -> None:
    """The tables of the benchmark: filters over the sources, aggregates over these, and joins of the two kinds."""
    in_lake = [f"source{number}" for number in range(sources // 2)]
    with shop.owner() as owner:
        for number in range(sources - len(in_lake)):
            owner.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, k int, v int)".encode())
            owner.execute(f"INSERT INTO t{number} SELECT i, i % 7, i FROM generate_series(1, 100) AS i (i)".encode())
    announce(f"creating {sources} sources")
    for name in in_lake:
        ms.sql(f"CREATE TABLE {name} USING delta AS SELECT id, CAST(id % 7 AS INT) AS k, CAST(id AS INT) AS v "
               "FROM range(100)")  # fmt: skip
    ms.attach(DATABASE, str(shop.address), cdc="trigger")
    read = [*in_lake, *(f"{DATABASE}.public.t{number}" for number in range(sources - len(in_lake)))]
    for number in range(tables):
        announce(f"creating stream table {number + 1} of {tables}")
        source, level = read[number % sources], number // sources
        if level == 0:
            query = f"SELECT id, k, v FROM {source} WHERE v > 10"
        elif level == 1:
            query = f"SELECT k, SUM(v) AS s, COUNT(*) AS n FROM idle{number % sources} GROUP BY k"
        else:
            other = (number + 1) % sources
            query = (
                f"SELECT a.k, a.s, b.n FROM idle{sources + number % sources} a JOIN idle{sources + other} b USING (k)"
            )
        to = f"{DATABASE}.public.served{number}" if level == 1 and sources - 1 - number % sources < served else None
        ms.create_stream_table(f"idle{number}", query, schedule="1s", dialect="spark", serve_to=to)


@contextmanager
def _counted_writes(ms: Millstream) -> Iterator[list[float]]:
    """When the catalog was written."""
    database, found = ms._catalog._database, list[float]()
    write = database.write

    @contextmanager
    def counted(*, is_durable: bool = False) -> Iterator[object]:
        found.append(time.perf_counter())
        with write(is_durable=is_durable) as connection:
            yield connection

    database.write = counted  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        del database.write


def _settle(ms: Millstream) -> None:
    """Wait until all tables have been refreshed, and for the JVM to finish what it began."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while any(record.repeats < 3 for name in ms.status() for record in ms.refresh_history(name.name, 1)):
        if time.monotonic() > end:
            raise TimeoutError("the tables do not come to rest")
        time.sleep(1)
    time.sleep(_SETTLING_SECONDS)


def _job_id(ms: Millstream) -> int:
    """The number of a Spark job that is started for this: jobs are numbered one after the other."""
    context = ms.spark.sparkContext
    context.setJobGroup("millstream-bench", "counts jobs")
    ms.spark.range(1).collect()
    return max(context.statusTracker().getJobIdsForGroup("millstream-bench"))


def _table(samples: Samples) -> TableOf:
    rows = [
        (
            str(s["round"]),
            f"{s['python_percent']:.2f}",
            f"{s['jvm_percent']:.2f}",
            *(f"{s[name] / s['seconds']:.2f}" for name in ("wakes", "writes", "passes")),
            str(s["jobs"]),
            f"{s['oldest_seconds']:.2f}",
        )
        for s in samples
    ]
    title = f"An idle lake: {samples[0]['tables']} tables on a schedule of 1 s"
    columns = (
        "round",
        "Python %",
        "JVM %",
        "wakes/s",
        "catalog writes/s",
        "passes/s",
        "Spark jobs",
        "oldest contents s",
    )
    return title, columns, rows


def _verdicts(samples: Samples) -> list[str]:
    percent = median(s["python_percent"] + s["jvm_percent"] for s in samples)
    writes = median(s["writes"] / s["wakes"] for s in samples)
    jobs = sum(s["jobs"] for s in samples)
    text = f"an idle lake: {percent:.1f} % of one core for Python and JVM (under {MOST_PERCENT:g})"
    return [
        verdict(percent < MOST_PERCENT, text),
        verdict(jobs == 0, f"an idle lake: {jobs} Spark jobs (none)"),
        verdict(writes <= 1, f"an idle lake: {writes:.2f} catalog writes per wake (at most 1)"),
    ]


SECTION = Section("idle", _measure, _table, _verdicts)
