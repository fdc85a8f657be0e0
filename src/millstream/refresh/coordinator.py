"""Refreshes a stream table and everything it reads, at one frontier of the base tables.

All tables of the chain are locked first, in one order; then the base tables' versions are taken, once; then each table
is refreshed in dependency order. So every table of a diamond agrees with the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from millstream.catalog import Catalog
from millstream.catalog.models import Dependency, SourceKind, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.naming import TableName
from millstream.refresh.execute import Progress
from millstream.refresh.inputs import base_tables, paths_of
from millstream.refresh.locks import LockManager, Waiting
from millstream.refresh.plan import Request
from millstream.refresh.runner import Definitions, Runner
from millstream.refresh.serving import TableServer
from millstream.results import InitiatedBy, RefreshMode, RefreshResult, Status
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.refresh.capture.cut import Cut


class Databases(Protocol):
    """What a refresh asks about attached databases."""

    def advance(self, names: Collection[str], at_cut: Callable[[Cut], None] | None = None) -> Mapping[str, int]:
        """Bring the databases of some tables or views to now; gives the versions of the tables, by name."""

    def end_forgotten(self) -> None:
        """End the capture of what nobody reads any more, where that could not be done at once."""


class Witness(Protocol):
    """Looks on while a chain is refreshed."""

    def cut(self, cut: Cut) -> None:
        """Called with the snapshot of a database that the refresh is about to be at, while it can be exported."""

    def refreshed(self, tables: Sequence[StreamTable], captured: Mapping[str, int]) -> None:
        """Called with the chain as it is recorded, and the versions of captured tables, before others may go on."""


class Coordinator:
    """Takes locks and a frontier, then runs the refreshes of a chain."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        settings: Settings,
        definitions: Definitions,
        databases: Databases,
        server: TableServer,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._settings = settings
        self._definitions = definitions
        self._databases = databases
        self._server = server
        self._clock = clock
        self._progress = progress

    def refresh(
        self,
        chain: Sequence[TableName],
        initiated_by: InitiatedBy,
        mode: RefreshMode | None = None,
        witness: Witness | None = None,
    ) -> RefreshResult:
        """Refresh the last table of a chain, what it reads first; `mode` is for the last one only.

        Raises:
            MillstreamError: SUSPENDED, or what made a refresh of the chain fail.
            OtherSourcesError: a table of the chain now reads other tables, so that another chain is to be refreshed.
        """
        ids = [self._catalog.get(name).id for name in chain]
        with self._locks.acquire(ids, on_wait=self._waiting):
            tables = tuple(self._catalog.get(name) for name in chain)
            _refuse_suspended(tables)
            worker = self._workers.here()
            runner = Runner(self._catalog, worker, self._settings, self._definitions, self._clock, self._progress)
            data_timestamp = self._clock()
            captured = self._advance(tables, initiated_by, data_timestamp, witness)
            if captured:  # what happened to their sources is recorded with the tables
                tables = tuple(self._catalog.get(name) for name in chain)
            paths, versions = self._frontier(tables, captured, initiated_by, data_timestamp)
            result: RefreshResult | None = None
            unserved: MillstreamError | None = None
            for table in tables:
                is_last = table is tables[-1]
                base = {name: versions[name] for name in _base_of(table, tables)}
                request = Request(
                    table=table,
                    compiled=self._compile(table, initiated_by, data_timestamp),
                    base_versions=versions,
                    paths=paths,
                    base_frontier=base,
                    data_timestamp=data_timestamp,
                    initiated_by=initiated_by,
                    mode=mode if is_last else None,
                )
                result = runner.refresh(request)
                unserved = self._serve(table.id, initiated_by, data_timestamp)
            if witness is not None:
                witness.refreshed([self._catalog.get(name) for name in chain], captured)
            if unserved is not None:  # the last one's own: those of what it reads are recorded with them
                raise unserved
            assert result is not None
            return result

    def _serve(self, table_id: str, initiated_by: InitiatedBy, started_at: datetime) -> MillstreamError | None:
        """Serve a table that was refreshed. A failure is recorded and given back: what reads the table goes on."""
        table = self._catalog.find_by_id(table_id)
        if table is None:
            return None
        try:
            self._server.serve(table, self._workers.here().store)
        except MillstreamError as error:
            self._failed(table, error, initiated_by, started_at)
            return error
        return None

    def _advance(
        self,
        tables: tuple[StreamTable, ...],
        initiated_by: InitiatedBy,
        started_at: datetime,
        witness: Witness | None,
    ) -> Mapping[str, int]:
        """Bring the databases behind some stream tables to now; one snapshot cuts all tables of a database."""
        names = {d.name for table in tables for d in table.definition.dependencies if _is_attached(d)}
        try:
            self._databases.end_forgotten()
            return self._databases.advance(names, witness.cut if witness is not None else None) if names else {}
        except MillstreamError as error:
            self._failed(tables[-1], error, initiated_by, started_at)
            raise

    def _frontier(
        self,
        tables: tuple[StreamTable, ...],
        captured: Mapping[str, int],
        initiated_by: InitiatedBy,
        started_at: datetime,
    ) -> tuple[dict[str, str], dict[str, int]]:
        """The base tables' paths and their versions now; those of captured ones are known."""
        store = self._workers.here().store
        try:
            found = base_tables(self._catalog, tables)
            for name, item in found.items():
                if "landing" in item.details:
                    self._progress(f"copying {name}, which records no changes")
                    with self._locks.acquire([_landing_key(name)]):
                        self._definitions.land(item)
            paths = paths_of(found)
            return paths, {n: captured[n] if n in captured else store.version(path) for n, path in paths.items()}
        except MillstreamError as error:
            self._failed(tables[-1], error, initiated_by, started_at)
            raise

    def _compile(self, table: StreamTable, initiated_by: InitiatedBy, started_at: datetime) -> Compiled:
        try:
            return self._definitions.compiled(table)
        except MillstreamError as error:
            self._failed(table, error, initiated_by, started_at)
            raise

    def _failed(
        self, table: StreamTable, error: MillstreamError, initiated_by: InitiatedBy, started_at: datetime
    ) -> None:
        self._catalog.record_failure(
            table.id,
            error,
            initiated_by=initiated_by,
            started_at=started_at,
            max_consecutive_errors=self._settings.max_consecutive_errors,
        )
        if error.code in {Code.SOURCE_MISSING, Code.SOURCE_CHANGED}:
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")

    def _waiting(self, waiting: Waiting) -> None:
        who = f" (process {waiting.holder_pid})" if waiting.holder_pid else ""
        self._progress(f"waiting for another refresh to end{who}")


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
