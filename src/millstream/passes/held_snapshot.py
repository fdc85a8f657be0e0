"""A snapshot of a database that outlives the tick of a refresh, so that PostgreSQL can run a query in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from millstream.capture.source_snapshot import SourceSnapshot
from millstream.catalog.models import StreamTable
from millstream.postgres.address import Address
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot


@dataclass
class HeldSnapshot:
    """The snapshot of a refresh, and the chain of tables after it.

    Args:
        address: the address of the database whose snapshot it is.
    """

    address: Address
    snapshot: ExportedSnapshot | None = None
    tables: dict[str, StreamTable] = field(default_factory=dict)
    captured: Mapping[str, int] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def hold(self, snapshot: SourceSnapshot) -> None:
        """Take over the snapshot of a tick, and release the snapshot of an earlier attempt."""
        self._stack.close()
        row = snapshot.connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        self.snapshot = self._stack.enter_context(ExportedSnapshot(self.address, take=lambda: str(row[0])))

    def refreshed(self, tables: Sequence[StreamTable], captured: Mapping[str, int]) -> None:
        """Keep the tables as the refresh has left them, before another refresh changes them."""
        self.tables = {str(t.name): t for t in tables}
        self.captured = captured

    @property
    def is_at_one_snapshot(self) -> bool:
        """Whether all tables are at the snapshot: a refresh that reloads sources ends at a later one."""
        return self.snapshot is not None and all(
            self.captured.get(name) == version
            for table in self.tables.values()
            for name, version in table.base_frontier.items()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)
