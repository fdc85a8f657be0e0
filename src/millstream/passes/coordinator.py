"""Refreshes a stream table and everything it reads, at one frontier of the base tables.

It locks all tables of the chain first, in a fixed order; then it takes the versions of the base tables, once; then it
refreshes each table in dependency order. So the tables of a diamond are consistent with each other.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.capture import Captures
from millstream.catalog import Catalog
from millstream.catalog.models import Dependency, Load, SourceKind, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.locks import LockManager, Waiting
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.planner import Choice
from millstream.refresh.execute import Progress
from millstream.refresh.inputs import base_tables, paths_of
from millstream.refresh.plan import Request
from millstream.refresh.runner import Runner
from millstream.results import InitiatedBy, RefreshMode, RefreshResult, Status
from millstream.serving.table_server import TableServer
from millstream.settings import Settings

_log = logging.getLogger(__name__)


class Coordinator:
    """Takes locks and a frontier, then runs the refreshes of a chain."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        settings: Settings,
        definitions: RecordedDefinitions,
        captures: Captures,
        server: TableServer,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._settings = settings
        self._definitions = definitions
        self._captures = captures
        self._server = server
        self._clock = clock
        self._progress = progress

    def refresh(
        self,
        chain: Sequence[TableName],
        initiated_by: InitiatedBy,
        mode: RefreshMode | None = None,
        held: HeldSnapshot | None = None,
    ) -> RefreshResult:
        """Refresh a chain of tables in order; `mode` applies to the last table only.

        Args:
            held: takes over the snapshot that the tables are brought to.

        Raises:
            MillstreamError: SUSPENDED, or what made a refresh of the chain fail.
            OutdatedError: the definition of a table of the chain no longer fits its sources.
        """
        ids = [self._catalog.get(name).id for name in chain]
        with self._locks.acquire(ids, on_wait=self.waiting):
            tables = tuple(self._catalog.get(name) for name in chain)
            _refuse_suspended(tables)
            now = self._clock()
            with self._recording(tables[-1], initiated_by, now):
                captured = self._advance(tables, held)
                if captured:  # the tick may have recorded changes of the sources with the tables
                    tables = tuple(self._catalog.get(name) for name in chain)
                frontier = self._frontier(tables, captured, now)
            result, unserved = None, None
            for table in tables:
                own = mode if table is tables[-1] else None
                result, unserved = self._refresh(table, frontier, initiated_by, own)
            if held is not None:
                held.refreshed([self._catalog.get(name) for name in chain], captured)
            if unserved is not None:  # only for the last table: the others record theirs with themselves
                raise unserved
            assert result is not None
            return result

    def load(
        self,
        upstream: Sequence[TableName],
        candidate: StreamTable,
        compiled: Compiled,
        initiated_by: InitiatedBy,
        choice: Choice,
        mode: RefreshMode | None = None,
    ) -> tuple[StreamTable, Load, RefreshResult]:
        """Fill the stages of a new definition that has not taken effect, after refreshing the stream tables it reads.

        The caller holds the locks of all of them. Nothing is recorded about the candidate, even if this fails.

        Args:
            upstream: the stream tables it reads, directly or indirectly, in refresh order.
            candidate: the stream table with its new definition, not yet loaded.

        Returns:
            The loaded candidate, the load to record, and the result of the refresh.

        Raises:
            MillstreamError: SUSPENDED, or why an upstream table cannot be refreshed or the candidate cannot be loaded.
            OutdatedError: the definition of an upstream table no longer fits its sources.
        """
        tables, now = tuple(self._catalog.get(name) for name in upstream), self._clock()
        _refuse_suspended(tables)
        frontier = self._frontier((*tables, candidate), self._advance((*tables, candidate)), now)
        for name in upstream:
            self._refresh(self._catalog.get(name), frontier, initiated_by, None)
        request = self._request(candidate, compiled, frontier, initiated_by, mode)
        load, result = self._runner().load(request, choice)
        versions = load.outcome.stage_versions
        loaded = replace(
            candidate,
            stages=tuple(replace(s, version=versions.get(s.id)) for s in candidate.stages),
            is_populated=True,
            data_timestamp=now,
            frontier=load.intent.new_frontier,
            base_frontier=request.base_frontier,
        )
        return loaded, load, result

    def _refresh(
        self, table: StreamTable, frontier: _Frontier, initiated_by: InitiatedBy, mode: RefreshMode | None
    ) -> tuple[RefreshResult, MillstreamError | None]:
        """Refresh one table of a chain and serve it; also returns the error if it could not be served."""
        with self._recording(table, initiated_by, frontier.data_timestamp):
            compiled = self._definitions.compiled(table)
        request = self._request(table, compiled, frontier, initiated_by, mode)
        result = self._runner().refresh(request)
        return result, self.serve(table.id, initiated_by, frontier.data_timestamp)

    def _request(
        self,
        table: StreamTable,
        compiled: Compiled,
        frontier: _Frontier,
        initiated_by: InitiatedBy,
        mode: RefreshMode | None,
    ) -> Request:
        return Request(
            table=table,
            compiled=compiled,
            base_versions=frontier.versions,
            paths=frontier.paths,
            base_frontier={name: frontier.versions[name] for name in _base_of(table, frontier.tables)},
            data_timestamp=frontier.data_timestamp,
            initiated_by=initiated_by,
            mode=mode,
        )

    def _runner(self) -> Runner:
        worker = self._workers.here()
        return Runner(self._catalog, worker, self._settings, self._definitions, self._clock, self._progress)

    def serve(self, table_id: str, initiated_by: InitiatedBy, started_at: datetime) -> MillstreamError | None:
        """Serve a refreshed table. A failure is recorded and returned, so that refreshes of its dependents continue."""
        table = self._catalog.find_by_id(table_id)
        if table is None:
            return None
        try:
            self._server.serve(table, self._workers.here().store)
        except MillstreamError as error:
            self.failed(table, error, initiated_by, started_at)
            return error
        return None

    def _advance(self, tables: tuple[StreamTable, ...], held: HeldSnapshot | None = None) -> Mapping[str, int]:
        """Bring the databases behind some stream tables up to date, each to one snapshot for all its tables."""
        read = [d for table in tables for d in table.definition.dependencies if _is_attached(d)]
        self._captures.end_forgotten()
        if not read:
            return {}
        names, named_views = (
            {d.name for d in read},
            {d.name for d in read if d.kind is SourceKind.VIEW and d.columns_used},
        )
        started = time.perf_counter()
        versions = self._captures.advance(names, named_views, held.hold if held is not None else None)
        _log.info("brought %s forward in %.0f ms", ", ".join(sorted(names)), (time.perf_counter() - started) * 1000)
        _log.debug("versions of the mirrors: %s", versions)
        return versions

    def _frontier(self, tables: tuple[StreamTable, ...], captured: Mapping[str, int], now: datetime) -> _Frontier:
        """The paths and current versions of the base tables; the tick has determined those of captured tables."""
        store = self._workers.here().store
        found = base_tables(self._catalog, tables)
        for name, item in found.items():
            if item.details.landing is not None:
                self._progress(f"copying {name}, which records no changes")
                with self._locks.acquire([_landing_key(name)]):
                    self._definitions.land(item)
        paths = paths_of(found)
        versions = {n: captured[n] if n in captured else store.version(path) for n, path in paths.items()}
        _log.debug("frontier: %s", versions)
        return _Frontier(tables, paths, versions, now)

    @contextmanager
    def _recording(self, table: StreamTable, initiated_by: InitiatedBy, started_at: datetime) -> Iterator[None]:
        """Record an error inside the block as a failed refresh of a table."""
        try:
            yield
        except MillstreamError as error:
            self.failed(table, error, initiated_by, started_at)
            raise

    def failed(
        self, table: StreamTable, error: MillstreamError, initiated_by: InitiatedBy, started_at: datetime
    ) -> None:
        """Record that a refresh failed; set the status ERROR at once if no retry can help."""
        self._catalog.record_failure(
            table.id,
            error,
            initiated_by=initiated_by,
            started_at=started_at,
            max_consecutive_errors=self._settings.max_consecutive_errors,
        )
        if error.code in {Code.SOURCE_MISSING, Code.SOURCE_CHANGED}:
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")

    def waiting(self, waiting: Waiting) -> None:
        """Report what a caller is waiting for."""
        who = f" (process {waiting.holder_pid})" if waiting.holder_pid else ""
        _log.debug("waiting for %s%s for %.1f s", waiting.key, who, waiting.waited_seconds)
        self._progress(f"waiting for another refresh to end{who}")


@dataclass(frozen=True)
class _Frontier:
    """The frontier of a chain: its stream tables, and the paths and versions of the base tables behind them."""

    tables: tuple[StreamTable, ...]
    paths: Mapping[str, str]
    versions: Mapping[str, int]
    data_timestamp: datetime


def _is_attached(dependency: Dependency) -> bool:
    kinds = {SourceKind.TABLE, SourceKind.VIEW}
    return dependency.kind in kinds and TableName.parse(dependency.name).database is not None


def _refuse_suspended(tables: Sequence[StreamTable]) -> None:
    for table in tables:
        if table.status is Status.SUSPENDED:
            raise MillstreamError(
                Code.SUSPENDED,
                f"{table.name} is suspended",
                hint=f"ALTER STREAM TABLE {table.name} SET STATUS ACTIVE resumes it",
            )


def _landing_key(name: str) -> str:
    return f"landing-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _base_of(table: StreamTable, tables: Sequence[StreamTable]) -> set[str]:
    """The base tables behind a table, through the stream tables it reads."""
    by_name: Mapping[str, StreamTable] = {str(t.name): t for t in tables}
    found: set[str] = set()
    for dependency in table.definition.dependencies:
        if dependency.kind is SourceKind.TABLE:
            found.add(dependency.name)
        elif dependency.kind is SourceKind.STREAM_TABLE:
            found |= _base_of(by_name[dependency.name], tables)
    return found
