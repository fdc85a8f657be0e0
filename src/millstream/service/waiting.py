"""`wait_for`: returns when a stream table shows what was committed.

While another process keeps the table fresh, this only watches the catalog. Otherwise it refreshes the table itself, as
soon as what is waited for is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.catalog import Catalog
from millstream.catalog.models import ObjectKind, SourceKind, StreamTable
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import Locks
from millstream.lake.source_changes import place
from millstream.naming import TableName
from millstream.postgres.pool import ConnectionPool
from millstream.results import InitiatedBy, Status, WaitResult
from millstream.service.daemon.client_call import current_call
from millstream.service.daemon.leader import LEADER_KEY
from millstream.service.due_times import next_due
from millstream.service.refreshing import Refreshing
from millstream.service.replacing import dag_of
from millstream.service.runtime import Runtime
from millstream.service.wait_points import (
    After,
    DatabasePoint,
    Mirror,
    SnapshotPoint,
    TransactionPoint,
    Wanted,
    is_shown,
    parse_after,
)
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.lsn import parse_lsn, print_lsn

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class _Behind:
    """What is behind a stream table, through the stream tables that it reads.

    Args:
        tables: the Delta tables: their paths, and the ids of the tables that were compiled against, if known.
        mirrored: the captured tables, by their databases.
    """

    tables: Mapping[str, tuple[str, frozenset[str]]]
    mirrored: Mapping[str, str]


class Waiting:
    """Waits for stream tables."""

    def __init__(
        self,
        catalog: Catalog,
        locks: Locks,
        connections: ConnectionPool,
        runtime: Callable[[], Runtime],
        refreshing: Refreshing,
        clock: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._locks = locks
        self._connections = connections
        self._runtime = runtime
        self._refreshing = refreshing
        self._clock = clock

    def wait(self, name: TableName, after: After, timeout: float | None) -> WaitResult:
        """Wait until a stream table, and the table it is served as, show what was committed.

        Raises:
            MillstreamError: WAIT_TIMEOUT, WAIT_INVALID, NOT_A_STREAM_TABLE, SUSPENDED; the errors of a refresh.
        """
        started = time.monotonic()
        table = self._catalog.get(name)
        behind = self._behind(table)
        wanted = parse_after(after, sorted(set(behind.mirrored.values())), sorted(behind.tables))
        watch = _Watch(self._catalog, self._runtime, behind, *self._points(wanted, behind))
        generation = self._catalog.generation()
        for waited in _pauses(started, timeout, f"{name} does not show what was waited for"):
            table = self._catalog.get(name)
            if (now := self._catalog.generation()) != generation:  # a refresh may follow a source that was replaced
                generation, watch.behind = now, self._behind(table)
            if watch.is_shown(table) and self._is_served(table):
                assert table.data_timestamp is not None
                return WaitResult(str(table.name), waited * 1000, table.data_timestamp)
            if table.status is Status.SUSPENDED:
                raise MillstreamError(
                    Code.SUSPENDED, f"{name} is suspended", hint=f"ALTER STREAM TABLE {name} SET STATUS ACTIVE"
                )
            if not self._is_kept_fresh(table) and self._is_committed(watch):
                self._refreshing.refresh(name, InitiatedBy.MANUAL)
        raise AssertionError("the pauses end by an error")

    def _behind(self, table: StreamTable) -> _Behind:
        """What a stream table reads, directly or not."""
        tables: dict[str, tuple[str, frozenset[str]]] = {}
        mirrored: dict[str, str] = {}
        dag = dag_of(self._catalog)
        for reader in (str(table.name), *dag.upstream([str(table.name)])):
            found = self._catalog.find(TableName.parse(reader)) if reader in dag.stream_tables else None
            for dependency in found.definition.dependencies if found is not None else ():
                if dependency.kind is not SourceKind.TABLE:
                    continue
                base = TableName.parse(dependency.name)
                if base.database is not None:
                    mirrored[dependency.name] = base.database
                elif (item := self._catalog.lake_object(ObjectKind.TABLE, base)) is not None and found is not None:
                    recorded = found.definition.body.sources.get(dependency.name)
                    ids = {recorded.table_id} if recorded is not None and recorded.table_id else set[str]()
                    path, known = tables.get(dependency.name, (place(item), frozenset()))
                    tables[dependency.name] = path, known | ids
        return _Behind(tables, mirrored)

    def _points(
        self, wanted: Wanted, behind: _Behind
    ) -> tuple[dict[str, list[DatabasePoint]], dict[str, int], datetime | None]:
        """The points by database and by table; and the time to wait for, where nothing else shows what is current."""
        points: dict[str, list[DatabasePoint]] = {}
        versions = dict(wanted.versions)
        since: datetime | None = None
        for database, xid in wanted.xids.items():
            points.setdefault(database, []).append(TransactionPoint(xid))
        for database in {*wanted.lsns, *(behind.mirrored.values() if wanted.is_now else ())}:
            snapshot = self._snapshot(database, wanted.lsns.get(database))
            points.setdefault(database, []).append(SnapshotPoint(snapshot))
        if wanted.is_now and behind.tables:
            store = self._runtime().workers.here().store
            for name, (path, _) in behind.tables.items():
                item = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(name))
                if item is not None and item.details.landing is not None:
                    since = self._clock()  # a refresh copies it, and only then it has a new version
                else:
                    versions[name] = store.version(path)
        return points, versions, since

    def _snapshot(self, database: str, lsn: int | None = None) -> PgSnapshot:
        """A snapshot of a database, taken after its WAL has passed a place.

        Raises:
            MillstreamError: WAIT_INVALID if it has not; DATABASE_UNREACHABLE.
        """
        found = self._catalog.find_database(database)
        if found is None:
            raise MillstreamError(Code.NOT_ATTACHED, f"{database} is not attached")
        with self._connections.visiting(found) as connection:
            if lsn is not None:
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                if parse_lsn(row[0]) < lsn:
                    raise MillstreamError(
                        Code.WAIT_INVALID,
                        f"the WAL of {database} ends at {row[0]}, before {print_lsn(lsn)}",
                        hint=f"read pg_current_wal_lsn() in {database} itself, after the commit",
                    )
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            return PgSnapshot.parse(row[0])

    def _is_committed(self, watch: _Watch) -> bool:
        """Whether a refresh now would show everything that is waited for."""
        for database, points in watch.points.items():
            here = {"snapshot": str(self._snapshot(database))}
            if not all(point.is_in(here) for point in points):
                return False
        store = self._runtime().workers.here().store
        tables = watch.behind.tables
        return all(n in tables and store.version(tables[n][0]) >= version for n, version in watch.versions.items())

    def _is_kept_fresh(self, table: StreamTable) -> bool:
        """Whether another process, or another thread of this one, refreshes a table by itself."""
        leadership = self._catalog.leadership()
        if leadership.leader is None or leadership.is_paused or table.status is Status.ERROR:
            return False
        if next_due(self._catalog, table.name, self._clock()) is None:
            return False
        try:
            with self._locks.acquire([LEADER_KEY], timeout=0):
                return False  # the leader was killed
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:
                raise
            return True

    def _is_served(self, table: StreamTable) -> bool:
        """Whether the table it is served as, if any, shows its contents."""
        if all(serving.table_id != table.id for serving in self._catalog.servings()):
            return True
        served = self._runtime().server.served_version(table)
        version = table.public_stage.version
        return served is not None and version is not None and served >= version


class _Watch:
    """Looks whether a stream table shows all points, and remembers what it has seen."""

    def __init__(
        self,
        catalog: Catalog,
        runtime: Callable[[], Runtime],
        behind: _Behind,
        points: Mapping[str, list[DatabasePoint]],
        versions: Mapping[str, int],
        since: datetime | None,
    ) -> None:
        self.behind = behind
        self.points = points
        self.versions = versions
        self._catalog = catalog
        self._runtime = runtime
        self._since = since
        self._seen_at: dict[tuple[str, DatabasePoint], int] = {}

    def is_shown(self, table: StreamTable) -> bool:
        """Whether the contents of a table include all points. The table was read before what is read here."""
        if not table.is_populated or table.data_timestamp is None:
            return False
        if self._since is not None and table.data_timestamp < self._since:
            return False
        frontier = table.base_frontier
        for name, version in self.versions.items():
            if frontier.get(name, -1) < version or not self._is_same_table(name):
                return False
        for database, points in self.points.items():
            for name, mirror in self._mirrors(database).items():
                if name not in frontier:
                    return False
                for point in points:
                    if mirror.position is not None and point.is_in(mirror.position):
                        self._seen_at.setdefault((name, point), mirror.version)
                    shown = self._with_shown(name, mirror, frontier[name])
                    if not is_shown(point, shown, frontier[name], self._seen_at.get((name, point))):
                        return False
        return True

    def _mirrors(self, database: str) -> dict[str, Mirror]:
        """The captured tables behind the stream table.

        The position of the database is read before the versions, which are then those of this position or later.
        """
        wanted = {name for name, place in self.behind.mirrored.items() if place == database}
        found = self._catalog.find_database(database)
        captures = {c.name: c for c in self._catalog.captures(database)}
        mirrors = {name: Mirror(database, 1 << 62, None) for name in wanted}  # one that is not captured yet
        for name in wanted & captures.keys() if found is not None else ():
            capture = captures[name]
            if found is not None and capture.version is not None and capture.is_kept and capture.state.resync is None:
                mirrors[name] = Mirror(database, capture.version, found.mirror_position(capture))
        return mirrors

    def _with_shown(self, name: str, mirror: Mirror, version: int) -> Mirror:
        """The mirror with the position of the commit that the stream table shows, if it may be needed."""
        if mirror.position is None or version >= mirror.version:
            return mirror
        path = next((c.path for c in self._catalog.captures(mirror.database) if c.name == name), None)
        if path is None:
            return mirror
        given = self._runtime().workers.here().store.commit_metadata(path, version).get("postgres")
        return replace(mirror, shown=given.get("position")) if isinstance(given, dict) else mirror

    def _is_same_table(self, name: str) -> bool:
        """Whether a table is the one that was compiled against: another one at its path has versions of its own."""
        if name not in self.behind.tables:
            return False
        path, ids = self.behind.tables[name]
        store = self._runtime().workers.here().store
        return not ids or ids == {store.table_id(path, store.version(path))}


def _pauses(started: float, timeout: float | None, late: str) -> Iterator[float]:
    """The seconds since the start, after pauses that become longer.

    Raises:
        MillstreamError: WAIT_TIMEOUT; DAEMON_LOST if nobody waits any more.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        waited = time.monotonic() - started
        yield waited
        call = current_call()
        if call is not None and (call.has_gone() or call.is_ending()):
            raise MillstreamError(
                Code.DAEMON_LOST, "the running process ends, so it does not wait any longer", hint="call it again"
            )
        if timeout is not None and time.monotonic() - started >= timeout:
            raise MillstreamError(
                Code.WAIT_TIMEOUT,
                f"{late} after {timeout:g} s",
                hint="wait longer, or refresh it; `millstream status` shows how stale it is",
            )
        time.sleep(pause if timeout is None else min(pause, max(0.0, started + timeout - time.monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
