"""Rewrites the files of one stored table: written without a lock, committed only if nobody has changed the table.

The commit moves the table to another version without changing a row. The catalog records it under the same lock; if
the process dies in between, the next refresh or tick finds that no row has changed and continues from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millstream.catalog import Catalog
from millstream.engine.storage import DeltaStore, RangeKind
from millstream.engine.storage.write.upkeep import TableUpkeep
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.maintenance.owned_tables import OwnedKind, OwnedTable

BUSY = "the table is being refreshed"
CHANGED = "the table was changed meanwhile"

Recording = Callable[[int], None]


class Compacting:
    """Rewrites files of stages and mirrors."""

    def __init__(self, catalog: Catalog, store: DeltaStore, locks: LockManager) -> None:
        self._catalog = catalog
        self._store = store
        self._locks = locks

    def compact(self, table: OwnedTable, upkeep: TableUpkeep, max_bytes: int) -> str | None:
        """Rewrite some files of a table; returns why it was not done, None if it was.

        Raises:
            MillstreamError: LAKE_UNWRITABLE.
        """
        with upkeep.rewriting(max_bytes) as rewritten:
            if rewritten is None:
                return CHANGED
            try:
                with self._locks.acquire([table.lock], timeout=0):
                    record = self._recording(table, rewritten.state.version)
                    if record is None or (version := rewritten.commit()) is None:
                        return CHANGED
                    record(version)
            except MillstreamError as error:
                if error.code is not Code.LOCK_TIMEOUT:
                    raise
                return BUSY
        return None

    def _recording(self, table: OwnedTable, version: int) -> Recording | None:
        """How to record the table's next version; None if it is not at rest at `version`."""
        return self._stage(table, version) if table.kind is OwnedKind.STAGE else self._mirror(table, version)

    def _stage(self, table: OwnedTable, version: int) -> Recording | None:
        owner = self._catalog.find_by_id(table.owner)
        stage = next((s for s in owner.stages if s.id == table.id), None) if owner is not None else None
        if owner is None or stage is None or owner.open_refresh_id is not None:
            return None
        if not self._is_at(table.path, stage.version, version):
            return None
        return lambda made: self._catalog.record_rewritten(table.owner, table.id, made)

    def _mirror(self, table: OwnedTable, version: int) -> Recording | None:
        database = self._catalog.find_database(table.owner)
        capture = next((c for c in self._catalog.captures(table.owner) if c.id == table.id), None)
        if database is None or database.open_tick is not None or capture is None or not capture.is_kept:
            return None
        if not self._is_at(table.path, capture.version, version):
            return None
        return lambda made: self._catalog.put_database(
            database, captures=[replace(capture, version=made)], is_durable=True
        )

    def _is_at(self, path: str, recorded: int | None, version: int) -> bool:
        """Whether the recorded contents are those at `version`: an interrupted rewriting may not be recorded."""
        if recorded is None or recorded == version:
            return recorded is not None
        return self._store.classify(path, recorded, version).kind is RangeKind.NOTHING
