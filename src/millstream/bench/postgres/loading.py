"""The first load of a table into its mirror, compared with the simplest way to write the same rows to Parquet.

That is `COPY ... TO STDOUT` over one connection, its text parsed by pyarrow with all cores, and one Parquet file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql
from pyarrow import csv

from millstream.bench.postgres.shop import COLUMNS, Connection, Shop, create_table

if TYPE_CHECKING:
    from millstream.service import Millstream

DATABASE = "loading"


@dataclass(frozen=True, slots=True)
class Sample:
    """One load of a table, both ways, in seconds."""

    rows: int
    round: int
    load: float
    copy: float
    parse: float
    write: float


def measure(
    ms: Millstream, shop: Shop, directory: Path, *, sizes: tuple[int, ...], rounds: int, announce: Callable[[str], None]
) -> list[Sample]:
    """All rounds but the first of each size, which warms up."""
    samples: list[Sample] = []
    ms.attach(DATABASE, str(shop.address), cdc="trigger")
    for rows in sizes:
        table = f"orders_{rows}"
        announce(f"filling a table with {rows:,} rows")
        with shop.owner() as owner:
            create_table(owner, table, rows)
        for number in range(rounds + 1):
            announce(f"loading {rows:,} rows, round {number} of {rounds}")
            parts = _copied(shop, table, directory)
            load = _loaded(ms, table, rows if number == 0 else None)
            if number > 0:
                samples.append(Sample(rows, number, load, *parts))
    ms.detach(DATABASE)
    return samples


def _loaded(ms: Millstream, table: str, expected: int | None) -> float:
    """How long starting the capture of a table takes: triggers, load, and commit. Capture is ended afterwards."""
    captures, name = ms._runtime.captures, f"{DATABASE}.public.{table}"
    start = time.perf_counter()
    with captures.beginning({name: tuple(COLUMNS)}):
        elapsed = time.perf_counter() - start
        if expected is not None and (found := ms.table(name).count()) != expected:
            raise AssertionError(f"{found} rows of {expected} were loaded")
    captures.end_unread([name])
    return elapsed


def _copied(shop: Shop, table: str, directory: Path) -> tuple[float, float, float]:
    """How long copying, parsing and writing take."""
    file = directory / f"{table}.parquet"
    start = time.perf_counter()
    with shop.owner() as owner:
        text = _text(owner, table)
    copied = time.perf_counter()
    rows = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        convert_options=csv.ConvertOptions(column_types=COLUMNS, strings_can_be_null=True),
    )
    parsed = time.perf_counter()
    pq.write_table(rows, file, compression="snappy")
    written = time.perf_counter()
    file.unlink()
    return copied - start, parsed - copied, written - parsed


def _text(connection: Connection, table: str) -> bytes:
    """Uses libpq directly, because psycopg's loop takes longer than the server."""
    libpq, parts = connection.pgconn, list[bytes]()
    statement = sql.SQL("COPY {} TO STDOUT (FORMAT csv)").format(sql.Identifier(table))
    libpq.exec_(statement.as_bytes(connection))
    size, data = libpq.get_copy_data(0)
    while size > 0:
        parts.append(bytes(data))
        size, data = libpq.get_copy_data(0)
    while libpq.get_result() is not None:
        pass
    return b"".join(parts)
