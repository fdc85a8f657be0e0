"""From COMMIT in PostgreSQL to the changed row in the served table, against the smallest Spark job there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from millstream.bench.postgres.arrivals import Arrivals
from millstream.bench.postgres.shop import Connection, Shop, create_table, insertion

if TYPE_CHECKING:
    from millstream.service import Millstream

CHANGES = 100
_WARM_UP = 8
_JOBS = 3  # a round
_QUERY = "SELECT region, SUM(amount) AS total, COUNT(*) AS n FROM {orders} GROUP BY region"


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one capture mode, in milliseconds."""

    way: str
    round: int
    trivial_ms: float
    row_ms: float
    refresh_ms: float
    phases: dict[str, float]


def measure(
    ms: Millstream, shops: dict[str, Shop], *, rows: int, rounds: int, announce: Callable[[str], None]
) -> list[Sample]:
    """All rounds after some that warm up; the capture modes take turns.

    Args:
        shops: a database for each capture mode, `trigger` and `wal`.
    """
    samples: list[Sample] = []
    with ExitStack() as stack:
        tables = [stack.enter_context(_served(ms, way, shop, rows, announce)) for way, shop in shops.items()]
        for number in range(1 - _WARM_UP, rounds + 1):
            announce(f"from COMMIT to the served row, round {number} of {rounds}")
            for served in tables:
                sample = served.change(number, trivial_job_ms(ms))
                if number > 0:
                    samples.append(sample)
        for served in tables:
            served.check()
    return samples


def trivial_job_ms(ms: Millstream) -> float:
    """The median of the smallest Spark job, the yardstick of fixed cost."""
    times = []
    for _ in range(_JOBS):
        start = time.perf_counter()
        ms.spark.range(10).groupBy().sum("id").collect()
        times.append((time.perf_counter() - start) * 1000)
    return median(times)


@contextmanager
def _served(ms: Millstream, way: str, shop: Shop, rows: int, announce: Callable[[str], None]) -> Iterator[_Served]:
    """A captured table, and an aggregate over it that is served beside it."""
    with shop.owner() as application, Arrivals(shop.owner()) as arrivals:
        announce(f"filling a table with {rows:,} rows ({way})")
        create_table(application, "orders", rows)
        served = _Served(ms, way, shop, rows, application, arrivals)
        ms.attach(served.database, str(shop.address), cdc=way)
        announce(f"loading {rows:,} rows and serving an aggregate ({way})")
        query = _QUERY.format(orders=f"{served.database}.public.orders")
        to = f"{served.database}.public.totals"
        ms.create_stream_table(served.name, query, refresh_mode="DIFFERENTIAL", serve_to=to)
        yield served
        ms.detach(served.database, cascade=True)


@dataclass(frozen=True)
class _Served:
    ms: Millstream
    way: str
    shop: Shop
    rows: int
    application: Connection
    arrivals: Arrivals

    @property
    def database(self) -> str:
        return f"shop_{self.way}"

    @property
    def name(self) -> str:
        return f"totals_{self.way}"

    def change(self, number: int, trivial_ms: float) -> Sample:
        """Commit changes of 100 rows, refresh, and record when the served table's COMMIT is notified."""
        self.arrivals.forget()
        with self.application.transaction():
            self._write(number + _WARM_UP)
        committed = time.perf_counter()
        self.ms.refresh_stream_table(self.name)
        refreshed = time.perf_counter()
        phases = self.ms.refresh_history(self.name, 1)[0].details.get("ms")
        return Sample(
            self.way,
            number,
            round(trivial_ms, 2),
            round((self.arrivals.next() - committed) * 1000, 2),
            round((refreshed - committed) * 1000, 2),
            dict(phases) if isinstance(phases, dict) else {},
        )

    def check(self) -> None:
        """Check that the served table is correct, and that the intended capture mode was used."""
        query = _QUERY.format(orders="orders")
        apart = f"(TABLE totals EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL TABLE totals)"
        with self.shop.server.superuser(self.shop.name) as superuser:
            count = superuser.execute(f"SELECT count(*) FROM ({apart}) AS apart".encode()).fetchone()
        if count != (0,):
            raise AssertionError(f"the served table ({self.way}) differs from the query's result")
        (source,) = (s for s in self.ms.sources() if s.name == self.database)
        if source.mode.lower() != self.way:
            raise AssertionError(f"{source.name} is captured by {source.mode}")

    def _write(self, number: int) -> None:
        """70 UPDATEs, 15 DELETEs, 15 INSERTs, scattered over the table."""
        updates, deletes = CHANGES * 70 // 100, CHANGES * 15 // 100
        picked = Random(number).sample(range(1, self.rows + 1), updates + deletes)
        execute = self.application.execute
        execute("UPDATE orders SET amount = amount + 1 WHERE id = ANY(%s)", [picked[:updates]])
        execute("DELETE FROM orders WHERE id = ANY(%s)", [picked[updates:]])
        execute(insertion("orders", self.rows * (number + 1) + 1, CHANGES - updates - deletes))
