"""A capture keeps a bag per table equal to the table: by triggers here, by other ways elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from bags import Bag, apply, assert_same, table_bag
from shops import Shop

from millstream.sources.postgres.buffers import install
from millstream.sources.postgres.installed import BufferInfo, BufferSettings
from millstream.sources.postgres.relations import Relation, find_relation
from millstream.sources.postgres.types import MirrorColumn, mirror_columns
from millstream.sources.postgres.windows import changed_buffers, cut, read_window, trim


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
        is_checked: compare with the tables at each poll: one snapshot cuts buffers and tables alike.
    """

    def __init__(
        self,
        shop: Shop,
        names: Sequence[str],
        settings: BufferSettings | None = None,
        *,
        columns: Sequence[str] | None = None,
        is_checked: bool = True,
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
        self._is_checked = is_checked

    def start(self) -> None:
        for name, relation in self.relations.items():
            self.buffers[name] = install(self.connection, relation, self.columns[name], self.settings)
        with cut(self.connection) as self.position:
            for name in self.relations:
                self.bags[name] = self.table(name)

    def poll(self) -> None:
        with cut(self.connection) as position:
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
            if self._is_checked:
                for name, bag in self.bags.items():
                    assert_same(bag, self.table(name), f"{name} at {position}")
        self.position = position
        trim(self.connection, list(self.buffers.values()), position)

    def table(self, name: str) -> Bag:
        """What the table holds in the transaction of the moment."""
        return table_bag(self.connection, self.relations[name], self.columns[name])

    def close(self) -> None:
        self.connection.close()
