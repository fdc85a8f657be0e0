"""A look at all due tables together, before passes: most of the time nothing has changed, and no pass is needed.

A pass over an unchanged table reads it from the catalog several times, locks it, and writes a row of its own. The look
brings every database forward once, finds the newest version of every base table once, and records all tables that need
no refresh in one transaction. It holds no locks of stream tables: that transaction checks that each table still is what
was looked at. All other tables are left to ordinary passes, which find the databases brought forward.

The look never compiles a query: a definition counts as up to date if a pass of this process has checked it and no
definition, view or table has been created, altered or dropped in the lake since.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.capture import Captures
from millstream.capture.captures import Advanced, Read
from millstream.capture.database_access import databases_of
from millstream.catalog import Catalog
from millstream.catalog.models import NoData, ObjectKind, StreamTable
from millstream.catalog.pulse import Pulse, Standing
from millstream.engine.storage.location import local_root
from millstream.engine.worker import Workers
from millstream.errors import MillstreamError
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.lake.source_changes import place
from millstream.naming import TableName
from millstream.passes.agreement import Reads
from millstream.passes.attempt import reads_of
from millstream.passes.frontier import read_of
from millstream.passes.pass_request import Taken
from millstream.passes.unchanged import Seen, unchanged
from millstream.planner import Facts, choose
from millstream.results import Action, InitiatedBy, Status
from millstream.serving.table_server import TableServer

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
"""How long a look waits for databases. What reads a slower one is left to a pass, and delays nothing else."""
_MAX_DATABASES = 16
"""How many databases are brought forward at the same time."""
_ENDING_SECONDS = 60.0
"""How often captures that outlived a crash or an unreachable database are looked for."""


@dataclass(frozen=True)
class Looked:
    """What a look has found.

    Args:
        unchanged: the tables that needed no refresh, which is recorded.
        taken: the databases that were brought forward, for the passes over the other tables.
        has_written: whether the catalog was written, and with it that the leader looked for work.
    """

    unchanged: frozenset[str]
    taken: Taken
    has_written: bool


@dataclass(frozen=True)
class _Definition:
    """What a look needs of a stream table, and what changes only with definitions.

    Args:
        table_ids: of the base tables that it was defined over, where they are known.
        is_served: whether its result is also kept in a database.
    """

    table: StreamTable
    reads: Reads
    read: Read
    table_ids: Mapping[str, str]
    is_served: bool


@dataclass(frozen=True)
class _Definitions:
    """All definitions of a generation of the catalog, and the paths of the base tables that a look can watch."""

    generation: int
    tables: Mapping[str, _Definition]
    paths: Mapping[str, str]


class QuickLook:
    """Looks at due tables; one thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        recorded: RecordedDefinitions,
        captures: Captures,
        server: TableServer,
        clock: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._recorded = recorded
        self._captures = captures
        self._server = server
        self._clock = clock
        self._known: _Definitions | None = None
        self._reasons: dict[str, str | None] = {}
        self._ticks: dict[str, Future[Advanced]] = {}
        self._next_ending = -math.inf
        self._threads = ThreadPoolExecutor(_MAX_DATABASES, thread_name_prefix="millstream-tick")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def look(self, order: Sequence[str], deadlines: Mapping[str, datetime | None], pulse: Pulse) -> Looked:
        """Record which of the due tables need no refresh, and bring the databases behind all of them forward.

        Args:
            order: the due tables, what is read before what reads it.
            deadlines: when their contents become too old.
            pulse: the catalog as the caller has just read it.
        """
        now = self._clock()
        known = self._definitions(pulse.generation)
        standings = {str(s.name): s for s in pulse.tables}
        due = [name for name in order if name in known.tables and name in standings]
        taken = self._taken(now, {name: known.tables[name].read for name in due})
        newest, table_ids = self._versions(known, due, taken)
        behind = {source for name in due for source in known.tables[name].reads.upstream}
        seen = {
            name: self._seen(known.tables[name], standings[name], pulse.generation, table_ids)
            for name in behind.union(due)
            if name in known.tables and name in standings
        }
        found = unchanged([name for name in due if name not in taken.advanced.refused], seen, newest, now)
        items = [self._item(standings[n], at, now, self._reasons[n], deadlines.get(n)) for n, at in found.items()]
        recorded = self._catalog.record_unchanged(items, pulse.generation, now) if items else frozenset()
        return Looked(frozenset(name for name in found if standings[name].id in recorded), taken, bool(items))

    def _definitions(self, generation: int) -> _Definitions:
        """The definitions of a generation; if the catalog has gone on since, recording refuses what they lead to."""
        if self._known is None or self._known.generation != generation:
            served = {s.table_id for s in self._catalog.servings()}
            objects = self._catalog.lake_objects(ObjectKind.TABLE)
            # a copy of a table that records no changes has to be made again to know whether it has changed
            watched = {str(o.name): place(o) for o in objects if o.details.landing is None and o.location}
            tables = {str(t.name): _definition(t, is_served=t.id in served) for t in self._catalog.list()}
            paths = {name: path for name, path in watched.items() if local_root(path) is not None}
            self._known = _Definitions(generation, tables, paths)
            self._reasons.clear()
            self._next_ending = -math.inf
        if time.monotonic() >= self._next_ending:
            self._next_ending = time.monotonic() + _ENDING_SECONDS
            self._threads.submit(self._captures.end_forgotten)
        return self._known

    # Databases

    def _taken(self, now: datetime, reads: Mapping[str, Read]) -> Taken:
        """Bring the databases forward side by side; those that take long are left out."""
        started: dict[str, Future[Advanced]] = {}
        late: set[str] = set()
        for database in databases_of({name for read in reads.values() for name in read.names}):
            if (before := self._ticks.get(database)) is not None and not before.done():
                late.add(database)
                continue
            readers = {name: _of(read, database) for name, read in reads.items() if read.is_of(database)}
            started[database] = self._ticks[database] = self._threads.submit(
                self._captures.advance, readers, is_waiting=False
            )
        wait(started.values(), timeout=_TICK_SECONDS)
        versions: dict[str, int] = {}
        refused: dict[str, MillstreamError] = {}
        for database, future in started.items():
            if not future.done():
                late.add(database)
                continue
            advanced = future.result()
            versions |= advanced.versions
            refused |= {name: error for name, error in advanced.refused.items() if name not in refused}
        if late:
            _log.debug("passes wait for %s", ", ".join(sorted(late)))
        readers_in_time = {name for name, read in reads.items() if not late.intersection(databases_of(read.names))}
        return Taken(now, frozenset(readers_in_time), Advanced(versions, refused))

    # Base tables

    def _versions(self, known: _Definitions, due: Sequence[str], taken: Taken) -> tuple[dict[str, int], dict[str, str]]:
        """The newest versions of the base tables, and the ids that distinguish them from others at the same paths."""
        store, versions, table_ids = self._workers.here().store, dict[str, int](), dict[str, str]()
        for name in sorted({base for table in due for base in known.tables[table].reads.base}):
            is_captured, path = TableName.parse(name).database is not None, known.paths.get(name)
            if path is None or (is_captured and name not in taken.advanced.versions):
                continue
            try:
                version = taken.advanced.versions[name] if is_captured else store.version(path)
                table_ids[name] = store.table_id(path, version)
            except MillstreamError:
                continue  # a pass reports it
            versions[name] = version
        return versions, table_ids

    # Stream tables

    def _seen(self, definition: _Definition, standing: Standing, generation: int, table_ids: Mapping[str, str]) -> Seen:
        is_well = (
            standing.status is Status.ACTIVE
            and standing.is_populated
            and not standing.needs_reinit
            and not standing.consecutive_errors
            and standing.open_refresh_id is None
        )
        is_same = all(table_ids.get(name) == id_ for name, id_ in definition.table_ids.items())
        is_served = not definition.is_served or self._server.is_served(standing.id, standing.stage_id, standing.version)
        is_settled = is_well and is_same and is_served and self._reason(definition, generation) is not None
        return Seen(
            reads=definition.reads,
            frontier=standing.frontier,
            base_frontier=standing.base_frontier,
            version=standing.version,
            data_timestamp=standing.data_timestamp,
            is_settled=is_settled,
        )

    def _reason(self, definition: _Definition, generation: int) -> str | None:
        """The reason that a pass would record if nothing has changed; None if it would refresh the table."""
        table, name = definition.table, str(definition.table.name)
        if self._reasons.get(name) is None:
            compiled = self._recorded.checked(table, generation)
            if compiled is None or compiled.fingerprint != table.definition.body.fingerprint:
                return None
            facts = Facts(
                mode=table.refresh_mode,
                is_populated=True,
                is_incremental=compiled.is_incremental,
                inputs=(),
                follows_time=compiled.follows_time,
            )
            self._reasons[name] = _unless_refreshed(facts)
        return self._reasons[name]

    def _item(
        self, standing: Standing, at: datetime, now: datetime, reason: str | None, deadline: datetime | None
    ) -> NoData:
        return NoData(
            table_id=standing.id,
            initiated_by=InitiatedBy.SCHEDULER,
            data_timestamp=at,
            frontier=standing.frontier,
            base_frontier=standing.base_frontier,
            started_at=now,
            reason=reason,
            freshness_deadline=deadline,
        )


def _definition(table: StreamTable, *, is_served: bool) -> _Definition:
    recorded = table.definition.body.sources
    ids = {name: source.table_id for name, source in recorded.items() if source.table_id is not None}
    return _Definition(table, reads_of(table), read_of(table), ids, is_served)


def _unless_refreshed(facts: Facts) -> str | None:
    """The reason of NO_DATA; None if the planner would choose another action, though no input has changed."""
    try:
        choice = choose(facts)
    except MillstreamError:
        return None
    return choice.reason if choice.action is Action.NO_DATA else None


def _of(read: Read, database: str) -> Read:
    """What is read of one database."""
    own = {name for name in read.names if TableName.parse(name).database == database}
    return replace(read, names=frozenset(own), named_views=read.named_views & own)
