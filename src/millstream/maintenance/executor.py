"""`Maintenance`: does what the plan says, one bite after another, until nothing is left or the time is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from millstream.catalog import Catalog
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.engine.storage.log.retention import StoredFile
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.maintenance.compacting import Compacting
from millstream.maintenance.facts import ServedVersions, Surveyed, surveyed
from millstream.maintenance.plan import MAX_REWRITTEN_BYTES, Bite, planned
from millstream.maintenance.sweeping import Sweeping
from millstream.results import MaintenanceKind, MaintenanceResult
from millstream.serving.table_server import TableServer
from millstream.settings import Settings

LOCK = "maintenance"
"""The lock under which one process at a time maintains a lake: files that one has not committed are no orphans."""
_ROUNDS = 100
_HISTORY_ROWS = 5_000

_log = logging.getLogger(__name__)


@dataclass
class _Budget:
    """The time that a call may take."""

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds


class Maintenance:
    """Keeps the storage of a lake small."""

    def __init__(
        self,
        root: Path,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        settings: Settings,
        server: TableServer,
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._settings = settings
        self._server = server
        self._clock = clock
        self._progress = progress
        self._sweeping = Sweeping(root, catalog, workers, locks)

    def run(self, seconds: float | None = None, *, dry_run: bool = False) -> list[MaintenanceResult]:
        """Do what is to be done, in bites; no refresh waits for it or fails because of it.

        Args:
            seconds: no bite begins later than this; None continues until everything is done.
            dry_run: only report what the first round would do.

        Raises:
            MillstreamError: LOCK_TIMEOUT if another process is maintaining the lake.
        """
        try:
            with self._locks.acquire([LOCK], timeout=0):
                return self._dry_run() if dry_run else self._run(_Budget(seconds))
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:
                raise
            raise MillstreamError(
                Code.LOCK_TIMEOUT, "another process is maintaining the lake", hint="try again later"
            ) from error

    def _run(self, budget: _Budget) -> list[MaintenanceResult]:
        results = [*self._prune(budget), *self._sweep(budget)]
        served, tried = ServedVersions(self._server, self._catalog), set[tuple[MaintenanceKind, str]]()
        for _ in range(_ROUNDS):
            if budget.is_spent:
                break
            done = self._round(budget, served, tried)
            results += done
            if all(r.skipped for r in done):
                break
        return results

    def _round(
        self, budget: _Budget, served: ServedVersions, tried: set[tuple[MaintenanceKind, str]]
    ) -> list[MaintenanceResult]:
        """Survey the lake once and do the bites that this shows; `tried` are those that cannot be done now."""
        known = {s.facts.table.path: s for s in self._survey(served)}
        results: list[MaintenanceResult] = []
        for bite in planned(s.facts for s in known.values()):
            if budget.is_spent:
                break
            if (bite.kind, bite.table.path) in tried:
                continue
            result = self._do(bite, known[bite.table.path])
            if result.skipped is not None:
                tried.add((bite.kind, bite.table.path))
            results.append(result)
        return results

    def _survey(self, served: ServedVersions) -> list[Surveyed]:
        return surveyed(self._catalog, self._workers.here().store, served, self._settings.retention_hours * 3600)

    def _dry_run(self) -> list[MaintenanceResult]:
        before, retention = self._history_cutoff(), self._settings.retention_hours * 3600
        results: list[MaintenanceResult] = []
        if rows := self._catalog.prunable_history(before):
            results.append(MaintenanceResult(MaintenanceKind.HISTORY, "refresh history", rows))
        if orphans := self._sweeping.orphans(retention):
            size = sum(map(_size, orphans))
            results.append(MaintenanceResult(MaintenanceKind.SWEEP, "stored tables", len(orphans), 0, size))
        known = {s.facts.table.path: s for s in self._survey(ServedVersions(self._server, self._catalog))}
        for bite in planned(s.facts for s in known.values()):
            files, size = _measured(bite, known[bite.table.path])
            gone = (0, 0) if bite.skipped else (bite.files, bite.bytes)
            if bite.kind is MaintenanceKind.CHECKPOINT:
                gone = (0, 0)
            name = bite.table.name
            after = (files - gone[0], size - gone[1])
            results.append(MaintenanceResult(bite.kind, name, files, after[0], size, after[1], skipped=bite.skipped))
        return results

    def _do(self, bite: Bite, known: Surveyed) -> MaintenanceResult:
        self._progress(f"{_VERBS[bite.kind]} {bite.table.name}")
        started, (files, size) = time.perf_counter(), _measured(bite, known)
        skipped = bite.skipped
        if skipped is None:
            try:
                skipped = self._carry_out(bite, known)
            except MillstreamError as error:
                skipped = f"{error.code}: {error.message}"
            except SPARK_ERRORS as error:
                skipped = first_line(error)
        now = known.upkeep.contents()
        after = now.log if bite.kind in _OF_LOG else now.data
        took = (time.perf_counter() - started) * 1000
        result = MaintenanceResult(
            bite.kind, bite.table.name, files, len(after), size, sum(f.size for f in after), took, skipped
        )
        _log.info(
            "%s of %s in %.0f ms: %d files before, %d after (%s)",
            bite.kind,
            result.name,
            took,
            files,
            result.files_after,
            skipped or "done",
        )
        return result

    def _carry_out(self, bite: Bite, known: Surveyed) -> str | None:
        upkeep, excess = known.upkeep, known.excess
        if bite.kind is MaintenanceKind.VACUUM:
            upkeep.delete_files(excess.files[: bite.files], excess.since)
        elif bite.kind is MaintenanceKind.LOG:
            upkeep.delete_log_files(excess.log)
        elif bite.kind is MaintenanceKind.CHECKPOINT:
            return None if upkeep.checkpoint(excess.since) else "the checkpoint could not be written"
        else:
            store = self._workers.here().store
            return Compacting(self._catalog, store, self._locks).compact(bite.table, upkeep, MAX_REWRITTEN_BYTES)
        return None

    # History and orphans

    def _history_cutoff(self) -> datetime:
        return self._clock() - timedelta(days=self._settings.history_retention_days)

    def _prune(self, budget: _Budget) -> list[MaintenanceResult]:
        started, before, rows = time.perf_counter(), self._history_cutoff(), 0
        while not budget.is_spent:
            gone = self._catalog.prune_history(before, _HISTORY_ROWS)
            rows += gone
            if gone < _HISTORY_ROWS:
                break
        if not rows:
            return []
        took = (time.perf_counter() - started) * 1000
        return [MaintenanceResult(MaintenanceKind.HISTORY, "refresh history", rows, duration_ms=took)]

    def _sweep(self, budget: _Budget) -> list[MaintenanceResult]:
        started, retention = time.perf_counter(), self._settings.retention_hours * 3600
        orphans = self._sweeping.orphans(retention)
        if not orphans or budget.is_spent:
            return []
        size = sum(map(_size, orphans))
        self._sweeping.sweep(orphans)
        left = [d for d in orphans if d.exists()]
        took = (time.perf_counter() - started) * 1000
        return [
            MaintenanceResult(
                MaintenanceKind.SWEEP, "stored tables", len(orphans), len(left), size, sum(map(_size, left)), took
            )
        ]


_OF_LOG = (MaintenanceKind.CHECKPOINT, MaintenanceKind.LOG)
_VERBS = {
    MaintenanceKind.VACUUM: "deleting unneeded files of",
    MaintenanceKind.CHECKPOINT: "writing a checkpoint of",
    MaintenanceKind.LOG: "deleting old commits of",
    MaintenanceKind.COMPACT: "compacting",
}


def _measured(bite: Bite, known: Surveyed) -> tuple[int, int]:
    files: Iterable[StoredFile] = known.contents.log if bite.kind in _OF_LOG else known.contents.data
    sizes = [f.size for f in files]
    return len(sizes), sum(sizes)


def _size(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
