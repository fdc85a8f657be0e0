"""What capture costs the application: the same statements on tables with and without capture.

Each round runs them on every table, in random order. Single-row statements alternate between the tables in small
steps, because the machine's speed varies from second to second and every table should get its share of both. They are
sent in pipelines, so that the server's process does not sleep between them: waking it takes as long as a statement, and
how often that happens has nothing to do with capture. One table without capture is measured twice; the difference
between the two is the noise. Another is on a server whose `wal_level` is not logical, to measure what that costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from random import Random

from psycopg import sql
from psycopg.pq import ExecStatus

from millstream.bench.postgres.backend_time import cpu_seconds
from millstream.bench.postgres.shop import Connection, Shop, create_table, insertion, insertion_of_one
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.publication import ensure_published
from millstream.sources.postgres.wal.slot import advance, drop_slot, flush_wal, slot_of
from millstream.sources.postgres.wal.slot_creation import create_slot

_SLOT_SECONDS = 60.0
_TURN = 100  # statements for one row; few enough that a pipeline's requests and answers fit into the socket's buffer


class Way(StrEnum):
    """How a table is captured."""

    NONE = "none"
    NONE_AGAIN = "none_again"
    TRIGGER = "trigger"
    WAL = "wal"
    NONE_REPLICA = "none_replica"
    """Not at all, on a server with wal_level = replica."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round's statements of a kind on one table, per row."""

    way: Way
    size: str
    statement: str
    round: int
    rows: int
    wall_us: float
    cpu_us: float


def measure(
    logical: Shop, replica: Shop, *, bulk_rows: int, single_rows: int, rounds: int, announce: Callable[[str], None]
) -> list[Sample]:
    """All rounds except the first, which warms up.

    Args:
        logical: a database on a server with wal_level = logical.
        replica: a database on a server with wal_level = replica.
    """
    samples: list[Sample] = []
    with ExitStack() as stack:
        tables = [stack.enter_context(_opened(replica if way is Way.NONE_REPLICA else logical, way)) for way in Way]
        for number in range(rounds + 1):
            announce(f"capture overhead, round {number} of {rounds}")
            random = Random(number)  # so that no table always finds the caches that another one filled
            for size, rows, run in (("bulk", bulk_rows, _bulk), ("single", single_rows, _singles)):
                for (way, statement), (wall, cpu) in run(tables, rows, random).items():
                    if number > 0:
                        samples.append(Sample(way, size, statement, number, rows, wall / rows * 1e6, cpu / rows * 1e6))
                for table in tables:
                    table.empty()
    return samples


_Measured = dict[tuple[Way, str], tuple[float, float]]
"""Seconds by the clock and on the CPU, by table and statement."""


def _bulk(tables: Sequence[_Table], rows: int, random: Random) -> _Measured:
    """One statement for all rows."""
    return {
        (table.way, name): table.timed(partial(table.connection.execute, statement))
        for table in random.sample(tables, len(tables))
        for name, statement in table.bulk_statements(rows).items()
    }


def _singles(tables: Sequence[_Table], rows: int, random: Random) -> _Measured:
    """A prepared statement and a transaction per row."""
    measured: _Measured = {}
    for name in ("INSERT", "UPDATE", "DELETE"):
        for first in range(1, rows + 1, _TURN):
            ids = range(first, min(first + _TURN, rows + 1))
            for table in random.sample(tables, len(tables)):
                wall, cpu = table.timed(partial(table.each, name, ids))
                wall_before, cpu_before = measured.get((table.way, name), (0.0, 0.0))
                measured[table.way, name] = (wall_before + wall, cpu_before + cpu)
    return measured


@dataclass
class _Table:
    way: Way
    connection: Connection
    forget: Callable[[], object]

    def bulk_statements(self, rows: int) -> dict[str, sql.Composed]:
        """Each of them for all rows."""
        table = sql.Identifier(self.way)
        return {
            "INSERT": insertion(self.way, 1, rows),
            "UPDATE": sql.SQL("UPDATE {} SET status = 'paid', amount = amount + 1").format(table),
            "DELETE": sql.SQL("DELETE FROM {}").format(table),
        }

    def prepare(self) -> None:
        """Prepare the statements for one row."""
        table = sql.Identifier(self.way)
        statements = {
            "INSERT": insertion_of_one(self.way),
            "UPDATE": sql.SQL("UPDATE {} SET status = 'paid', amount = amount + 1 WHERE id = $1").format(table),
            "DELETE": sql.SQL("DELETE FROM {} WHERE id = $1").format(table),
        }
        for name, statement in statements.items():
            self.connection.pgconn.prepare(name.encode(), statement.as_bytes(self.connection))

    def empty(self) -> None:
        """Empty the table and its buffer, and advance the slot."""
        self.connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(self.way)))
        self.forget()

    def each(self, name: str, ids: range) -> None:
        """Execute a prepared statement for row after row, each in a transaction."""
        server, statement = self.connection.pgconn, name.encode()
        server.enter_pipeline_mode()
        for number in ids:
            server.send_query_prepared(statement, [b"%d" % number])
            server.pipeline_sync()
        server.flush()
        unanswered = len(ids)
        while unanswered:
            result = server.get_result()
            if result is not None:
                assert result.status in (ExecStatus.COMMAND_OK, ExecStatus.PIPELINE_SYNC), result.error_message
                unanswered -= result.status == ExecStatus.PIPELINE_SYNC
        server.exit_pipeline_mode()

    def timed(self, action: Callable[[], object]) -> tuple[float, float]:
        """How many seconds it takes, and for how many of them the server's process is on a CPU."""
        pid = self.connection.info.backend_pid
        cpu, start = cpu_seconds(pid), time.perf_counter()
        action()
        elapsed = time.perf_counter() - start
        return elapsed, cpu_seconds(pid) - cpu


@contextmanager
def _opened(shop: Shop, way: Way) -> Iterator[_Table]:
    with shop.owner() as owner:
        create_table(owner, way)
        with _captured(shop, way) as forget:
            table = _Table(way, owner, forget)
            table.prepare()
            yield table


@contextmanager
def _captured(shop: Shop, way: Way) -> Iterator[Callable[[], object]]:
    """Capture a table as millstream would; returns a function that discards the captured changes."""
    if way not in (Way.TRIGGER, Way.WAL):
        yield lambda: None
        return
    with connect(shop.address) as connection:
        relation = find_relation(connection, way, "public")
        columns = mirror_columns(relation)
        if way is Way.TRIGGER:
            buffer = install(connection, relation, columns)
            yield partial(connection.execute, sql.SQL("TRUNCATE {}").format(buffer.table))
            return
        slot = slot_of("benchmark", shop.name)
        ensure_published(connection, slot.publication, [(relation, [c.name for c in columns])])
        create_slot(shop.address, slot.name, _SLOT_SECONDS)
        try:
            yield lambda: advance(connection, slot, flush_wal(connection))
        finally:
            drop_slot(connection, slot.name)
