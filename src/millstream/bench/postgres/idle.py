"""The cost of a tick that finds nothing, with many captured tables in one database; it runs no Spark query."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.bench.postgres.shop import Shop
from millstream.capture.captures import Read

if TYPE_CHECKING:
    from millstream.service import Millstream

DATABASE, READER = "idle", "idle_reader"
QUIET, BUSY = "nothing was written", "another table was written"
_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One tick, in milliseconds."""

    case: str
    round: int
    tick_ms: float


def measure(ms: Millstream, shop: Shop, *, tables: int, rounds: int, announce: Callable[[str], None]) -> list[Sample]:
    """Ticks in an idle database, and in one where another table was written since the last tick."""
    names = [f"{DATABASE}.public.t{number}" for number in range(tables)]
    samples: list[Sample] = []
    with shop.owner() as owner:
        owner.execute("CREATE TABLE other (a bigint)")
        for number in range(tables):
            owner.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, a text)".encode())
            owner.execute(f"INSERT INTO t{number} VALUES (1, 'a')".encode())
        announce(f"capturing {tables} tables")
        ms.attach(DATABASE, str(shop.address), cdc="trigger")
        ms.create_stream_table(READER, " UNION ALL ".join(f"SELECT id, a FROM {n}" for n in names), initialize=False)
        advance, readers = ms._runtime.captures.advance, {READER: Read(frozenset(names))}
        for number in range(1 - _WARM_UP, rounds + 1):
            for case in (QUIET, BUSY):
                if case == BUSY:
                    owner.execute("INSERT INTO other VALUES (1)")
                start = time.perf_counter()
                advance(readers)
                elapsed = time.perf_counter() - start
                if number > 0:
                    samples.append(Sample(case, number, round(elapsed * 1000, 3)))
        ms.detach(DATABASE, cascade=True)
    return samples
