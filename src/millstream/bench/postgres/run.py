"""Measures capture, serving, ticks and first loads on PostgreSQL servers that it starts, all in one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.bench.page import show
from millstream.bench.postgres.report import write_report
from millstream.bench.run import DEFAULT_OUT, machine
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.cli.output import Output
    from millstream.service import Millstream


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    bulk_rows: int = 100_000
    single_rows: int = 3_000
    overhead_rounds: int = 11
    served_rows: int = 1_000_000
    latency_rounds: int = 15
    idle_tables: int = 50
    idle_rounds: int = 50
    loaded_rows: tuple[int, ...] = (2_000_000, 5_000_000)
    load_rounds: int = 2


QUICK = Sizes(
    bulk_rows=20_000,
    single_rows=500,
    overhead_rounds=3,
    served_rows=100_000,
    latency_rounds=5,
    idle_rounds=10,
    loaded_rows=(300_000,),
    load_rounds=1,
)


def run_postgres(
    output: Output,
    *,
    quick: bool = False,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
    sizes: Sizes | None = None,
) -> None:
    """Measure, print the summary, and write raw data, plot and page."""
    result = measured(sizes or (QUICK if quick else Sizes()), progress or (lambda _: None))
    show(output, result, write_report(result, out or DEFAULT_OUT, quick=quick))


def measured(
    sizes: Sizes, announce: Callable[[str], None], opened: Callable[[Path], Millstream] | None = None
) -> dict[str, Any]:
    """The raw data.

    Args:
        opened: opens the lake to measure.

    Raises:
        MillstreamError: DEPENDENCY_MISSING if the server or the driver is not installed.
    """
    try:
        from millstream.bench.postgres import idle, latency, loading, overhead
        from millstream.bench.postgres.shop import SETTINGS, new_shop
        from millstream.testing.postgres_server import LOGICAL, Server
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING, "this benchmark needs psycopg", hint="pip install 'millstream[demo]'"
        ) from e
    from millstream.service import connect

    announce("starting two PostgreSQL servers")
    with Server({**SETTINGS, **LOGICAL}) as server:
        with Server(SETTINGS) as other:
            overheads = overhead.measure(
                new_shop(server),
                new_shop(other),
                bulk_rows=sizes.bulk_rows,
                single_rows=sizes.single_rows,
                rounds=sizes.overhead_rounds,
                announce=announce,
            )
        with (
            tempfile.TemporaryDirectory(prefix="millstream-bench-") as name,
            (opened or partial(connect, progress=announce))(Path(name) / "lake") as ms,
        ):
            shops = {"trigger": new_shop(server), "wal": new_shop(server)}
            latencies = latency.measure(
                ms, shops, rows=sizes.served_rows, rounds=sizes.latency_rounds, announce=announce
            )
            ticks = idle.measure(
                ms, new_shop(server), tables=sizes.idle_tables, rounds=sizes.idle_rounds, announce=announce
            )
            loads = loading.measure(
                ms, new_shop(server), Path(name), sizes=sizes.loaded_rows, rounds=sizes.load_rounds, announce=announce
            )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "sizes": asdict(sizes),
        "overhead": [asdict(s) for s in overheads],
        "latency": [asdict(s) for s in latencies],
        "idle": [asdict(s) for s in ticks],
        "loading": [asdict(s) for s in loads],
    }
