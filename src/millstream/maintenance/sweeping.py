"""Deletes stored tables that a crash has orphaned: directories that no definition and no capture uses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from millstream.capture.ending import sweep as sweep_mirrors
from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.lake.stage_storage import StageStorage

_LEAST_AGE_SECONDS = 3600.0
"""A new stream table has its directories a moment before it is recorded."""


class Sweeping:
    """The directories of a lake's stages and mirrors."""

    def __init__(self, root: Path, catalog: Catalog, workers: Workers, locks: LockManager) -> None:
        self._stages = root / "stream_tables"
        self._mirrors = root / "mirrors"
        self._storage = StageStorage(root, workers)
        self._catalog = catalog
        self._locks = locks

    def orphans(self, retention_seconds: float) -> list[Path]:
        """The directories that nothing uses."""
        found = [*_directories(self._stages), *_directories(self._mirrors)]
        before = time.time() - max(retention_seconds, _LEAST_AGE_SECONDS)
        used = self._used()
        return [d for d in found if str(d) not in used and _touched(d) < before]

    def sweep(self, orphans: Sequence[Path]) -> None:
        """Delete orphaned directories; those of a stream table's other definitions unless it is being replaced."""
        sweep_mirrors(self._catalog, self._mirrors)
        for table in self._catalog.list():
            self._sweep(table)
        names = {str(t.name) for t in self._catalog.list()}
        used = self._used()
        for directory in orphans:
            if directory.parent == self._stages and directory.name[:-9] not in names and str(directory) not in used:
                shutil.rmtree(directory, ignore_errors=True)

    def _sweep(self, table: StreamTable) -> None:
        try:
            with self._locks.acquire([table.id], timeout=0):
                if (current := self._catalog.find_by_id(table.id)) is not None:
                    self._storage.sweep(current)
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:
                raise

    def _used(self) -> set[str]:
        used = {str(Path(s.path).parent) for t in self._catalog.list() for s in t.stages}
        used |= {c.path for c in self._catalog.captures()}
        return used | {str(o.location) for o in self._catalog.lake_objects()}


def _directories(parent: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (d for d in parent.iterdir() if d.is_dir())


def _touched(directory: Path) -> float:
    """When something was last created or deleted in a directory of stored tables, at any level that a load touches."""
    times = [0.0]
    for place in (directory, *directory.glob("*"), *directory.glob("*/_delta_log"), directory / "_delta_log"):
        with suppress(FileNotFoundError):
            times.append(place.stat().st_mtime)
    return max(times)
