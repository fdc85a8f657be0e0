"""What capture costs the application: the same statements on tables that are captured and on tables that are not.

Each round runs them on every table, in an order of its own. One table without capture is there twice: how much
these two differ is the noise. Another lies on a server whose `wal_level` is not logical: what does that cost by itself?
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from random import Random

from psycopg import sql

from millstream.bench.postgres.backend_time import cpu_seconds
from millstream.bench.postgres.shop import Connection, Shop, create_table, insertion, insertion_of_one
from millstream.sources.postgres.buffers import install
from millstream.sources.postgres.connection import connect
from millstream.sources.postgres.publication import ensure_published
from millstream.sources.postgres.relations import find_relation
from millstream.sources.postgres.slot import advance, drop_slot, flush_wal, slot_of
from millstream.sources.postgres.slot_creation import create_slot
from millstream.sources.postgres.types import mirror_columns

_SLOT_SECONDS = 60.0


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
    logical: Shop, replica: Shop, *, bulk_rows: int, single_rows: int, rounds: int, tell: Callable[[str], None]
) -> list[Sample]:
    """All rounds but the first, which warms up.

    Args:
        logical: a database of a server with wal_level = logical.
        replica: one of a server without.
    """
    samples: list[Sample] = []
    with ExitStack() as stack:
        tables = [stack.enter_context(_opened(replica if way is Way.NONE_REPLICA else logical, way)) for way in Way]
        for number in range(rounds + 1):
            tell(f"capture overhead, round {number} of {rounds}")
            order = Random(number).sample(tables, len(tables))  # what one leaves in the caches, another meets
            for size, rows in (("bulk", bulk_rows), ("single", single_rows)):
                for table in order:
                    measured = table.bulk(rows) if size == "bulk" else table.singles(rows)
                    for statement, (wall, cpu) in measured.items():
                        each = (wall / rows * 1e6, cpu / rows * 1e6)
                        if number > 0:
                            samples.append(Sample(table.way, size, statement, number, rows, *each))
                    table.empty()
    return samples


@dataclass
class _Table:
    way: Way
    connection: Connection
    forget: Callable[[], object]

    def bulk(self, rows: int) -> dict[str, tuple[float, float]]:
        """One statement for all rows."""
        table = sql.Identifier(self.way)
        statements = {
            "INSERT": insertion(self.way, 1, rows),
            "UPDATE": sql.SQL("UPDATE {} SET status = 'paid', amount = amount + 1").format(table),
            "DELETE": sql.SQL("DELETE FROM {}").format(table),
        }
        return {name: self._timed(partial(self.connection.execute, s)) for name, s in statements.items()}

    def singles(self, rows: int) -> dict[str, tuple[float, float]]:
        """A prepared statement and a transaction per row."""
        return {name: self._timed(partial(self._each, name, rows)) for name in ("INSERT", "UPDATE", "DELETE")}

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
        """Have table, buffer and slot be as they were."""
        self.connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(self.way)))
        self.forget()

    def _each(self, name: str, rows: int) -> None:
        execute, statement = self.connection.pgconn.exec_prepared, name.encode()
        for number in range(1, rows + 1):
            execute(statement, [b"%d" % number])

    def _timed(self, action: Callable[[], object]) -> tuple[float, float]:
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
    """Capture a table as millstream would; gives what lets go of what was captured."""
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
