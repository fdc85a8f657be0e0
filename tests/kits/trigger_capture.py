"""A capture keeps a bag per table equal to the table: by triggers here, by other ways elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

import psycopg

from kits.bags import Bag, apply, assert_same, table_bag
from kits.shops import Shop
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.server.relations import Relation, find_relation
from millstream.sources.postgres.server.snapshot_transaction import tick_transaction
from millstream.sources.postgres.triggers.buffer_changes import changed_buffers, read_changes, trim
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo, BufferSettings
from millstream.sources.postgres.values.types import MirrorColumn, mirror_columns

Owner: TypeAlias = psycopg.Connection[tuple[object, ...]]
Follow: TypeAlias = "Callable[..., TriggerCapture]"


class Capture(Protocol):
    """A way to follow some tables. `start` and `poll` run while others write."""

    bags: dict[str, Bag]
    """What each table held when it was polled last."""
    changes: int
    """How many changed rows have come so far."""

    def start(self) -> None:
        """Begin to capture, and load what the tables hold."""

    def poll(self) -> None:
        """Bring the bags up to all that was committed when it was called."""

    def close(self) -> None:
        """Give back connections and everything that the capture holds on the server."""


class TriggerCapture:
    """Follows tables by their triggers and buffers.

    Args:
        check_every: compare with the tables at every n-th poll: one snapshot cuts buffers and tables alike. Tables
            that are read are locked first, and TRUNCATE waits for that: the other polls run without.
    """

    def __init__(
        self,
        shop: Shop,
        names: Sequence[str],
        settings: BufferSettings | None = None,
        *,
        columns: Sequence[str] | None = None,
        check_every: int = 1,
    ) -> None:
        self.address = shop.address
        self.connection = shop.connect()
        self.settings = settings or BufferSettings()
        self.relations: dict[str, Relation] = {n: find_relation(self.connection, n) for n in names}
        self.columns: dict[str, tuple[MirrorColumn, ...]] = {
            n: mirror_columns(r, columns) for n, r in self.relations.items()
        }
        self.buffers: dict[str, BufferInfo] = {}
        self.bags: dict[str, Bag] = {n: Counter() for n in names}
        self.position = ""
        self.changes = self.truncations = self.rereads = 0
        self.polls = 0
        self._check_every = check_every

    def start(self) -> None:
        for name, relation in self.relations.items():
            self.buffers[name] = install(self.connection, relation, self.columns[name], self.settings)
        with self._snapshot(is_locked=True) as (connection, self.position):
            for name in self.relations:
                self.bags[name] = self.table(name, connection)

    def poll(self) -> None:
        self.polls += 1
        if not self._poll(is_locked=self.polls % self._check_every == 0):
            assert self._poll(is_locked=True)
        trim(self.connection, list(self.buffers.values()), self.position)

    def _poll(self, *, is_locked: bool) -> bool:
        """Whether the snapshot sufficed: a table that has to be read again must be locked first, as a tick does."""
        with self._snapshot(is_locked=is_locked) as (connection, position):
            changed = changed_buffers(connection, list(self.buffers.values()), self.position, position)
            read = {
                name: read_changes(connection, buffer, self.columns[name], self.position, position)
                for name, buffer in self.buffers.items()
            }
            if not is_locked and any(changes.must_reread for changes in read.values()):
                return False
            for name, changes in read.items():
                assert (self.buffers[name].oid in changed) or changes.is_empty
                self.changes += changes.rows.num_rows
                if changes.must_reread:
                    self.rereads += 1
                    self.bags[name] = self.table(name, connection)
                    continue
                if changes.truncated:
                    self.truncations += 1
                    self.bags[name].clear()
                apply(self.bags[name], changes.rows)
            if is_locked:
                for name, bag in self.bags.items():
                    assert_same(bag, self.table(name, connection), f"{name} at {position}")
        self.position = position
        return True

    def _snapshot(self, *, is_locked: bool) -> AbstractContextManager[tuple[Connection, str]]:
        return snapshot_of(self.address, self.connection, list(self.relations.values()) if is_locked else ())

    def table(self, name: str, connection: Connection | None = None) -> Bag:
        """What the table holds in the transaction of a connection, by default that of the polls."""
        return table_bag(connection or self.connection, self.relations[name], self.columns[name])

    def close(self) -> None:
        self.connection.close()


@contextmanager
def snapshot_of(
    address: Address, connection: Connection, relations: Sequence[Relation] = ()
) -> Iterator[tuple[Connection, str]]:
    """A transaction and its snapshot, as a tick takes them: where tables are read too, they are locked before it."""
    if not relations:
        with tick_transaction(connection) as state:
            yield connection, state.snapshot
        return
    with ExportedSnapshot(address, relations) as snapshot:
        yield snapshot.connection, snapshot.position


@contextmanager
def polled(connection: Connection) -> Iterator[str]:
    """The snapshot of a transaction that reads changes."""
    with tick_transaction(connection) as state:
        yield state.snapshot


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait for something that happens elsewhere, 20 seconds at most."""
    until = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.02)
