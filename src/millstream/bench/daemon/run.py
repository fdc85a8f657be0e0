"""Measures what running costs, and what users see of it: one section after the other, each on a lake of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.bench.page import Summary, show, write
from millstream.bench.run import DEFAULT_OUT, machine
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.bench.daemon.section import Section
    from millstream.cli.output import Output
    from millstream.service import Millstream

_NOTES = (
    "CPU time is that of the Python process and of its JVM, from /proc, in percent of one core. The PostgreSQL server",
    "runs on the same machine and is not counted.",
)


def sections() -> tuple[Section, ...]:
    """What is measured, in this order.

    Raises:
        MillstreamError: DEPENDENCY_MISSING if the driver is not installed.
    """
    try:
        from millstream.bench.daemon import client, idle, latency, side_by_side
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING, "this benchmark needs psycopg", hint="pip install 'millstream[demo]'"
        ) from e
    return (idle.SECTION, latency.SECTION, side_by_side.SECTION, client.SECTION)


def run_daemon(
    output: Output,
    *,
    quick: bool = False,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Measure, print the summary, and write raw data and page."""
    result = measured(progress or (lambda _: None), is_quick=quick)
    show(output, result, write_report(result, out or DEFAULT_OUT, quick=quick))


def measured(
    announce: Callable[[str], None], *, is_quick: bool, opened: Callable[[Path], Millstream] | None = None
) -> dict[str, Any]:
    """The raw data.

    Args:
        opened: opens the lakes to measure.
    """
    chosen = sections()
    from millstream.bench.daemon.section import Bench
    from millstream.bench.postgres.shop import SETTINGS
    from millstream.service import connect
    from millstream.testing.postgres_server import LOGICAL, Server

    result: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    announce("starting a PostgreSQL server")
    with Server({**SETTINGS, **LOGICAL}) as server, tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        for section in chosen:
            bench = Bench(server, opened or partial(connect, progress=announce), Path(name), is_quick, announce)
            result[section.name] = [asdict(sample) for sample in section.measure(bench)]
    return result


def write_report(result: dict[str, Any], out: Path, *, quick: bool) -> Summary:
    """Write raw data and page to `out`; those of a quick run have another name than those of a full run."""
    chosen = [section for section in sections() if section.name in result]
    summary = Summary(
        [section.table(result[section.name]) for section in chosen],
        [line for section in chosen for line in section.verdicts(result[section.name])],
    )
    page = out / ("daemon-quick.md" if quick else "daemon.md")
    write(result, summary, page, "Benchmark of the running process", _NOTES, None)
    return summary
