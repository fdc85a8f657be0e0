"""A capture keeps a bag per table equal to the table: by triggers here, by other ways elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import psycopg
from bags import Bag, apply, assert_same, table_bag
from psycopg import sql
from shops import Shop

from millstream.sources.postgres.buffers import install
from millstream.sources.postgres.installed import BufferInfo, BufferSettings
from millstream.sources.postgres.relations import Relation, find_relation
from millstream.sources.postgres.types import MirrorColumn, mirror_columns
from millstream.sources.postgres.windows import changed_buffers, cut, read_window, trim

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
        """Give back connections and whatever the capture holds on the server."""


class TriggerCapture:
    """Follows tables by their triggers and windows.

    Args:
        check_every: compare with the tables at each so-manyth poll: one snapshot cuts buffers and tables alike. A
            table that is read then is locked first, and TRUNCATE waits: other polls run without.
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
        with cut(self.connection, self._tables) as self.position:
            for name in self.relations:
                self.bags[name] = self.table(name)

    def poll(self) -> None:
        self.polls += 1
        is_checked = self.polls % self._check_every == 0
        with cut(self.connection, self._tables if is_checked else ()) as position:
            changed = changed_buffers(self.connection, list(self.buffers.values()), self.position, position)
            for name, buffer in self.buffers.items():
                window = read_window(self.connection, buffer, self.columns[name], self.position, position)
                assert (buffer.oid in changed) or window.is_empty
                self.changes += window.rows.num_rows
                if window.must_reread:
                    self.rereads += 1
                    self.bags[name] = self.table(name)
                    continue
                if window.truncated:
                    self.truncations += 1
                    self.bags[name].clear()
                apply(self.bags[name], window.rows)
            if is_checked:
                for name, bag in self.bags.items():
                    assert_same(bag, self.table(name), f"{name} at {position}")
        self.position = position
        trim(self.connection, list(self.buffers.values()), position)

    @property
    def _tables(self) -> list[sql.Identifier]:
        return [sql.Identifier(r.schema, r.name) for r in self.relations.values()]

    def table(self, name: str) -> Bag:
        """What the table holds in the transaction of the moment."""
        return table_bag(self.connection, self.relations[name], self.columns[name])

    def close(self) -> None:
        self.connection.close()


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait for something that happens elsewhere, 20 seconds at most."""
    until = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.02)
