"""The frontier of a pass: the base tables behind its stream tables, brought forward and read off once.

What cannot be brought forward fails the stream tables that read it, and no others: a database that is unreachable does
not keep the tables of another one from being refreshed.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from millstream.capture import Captures
from millstream.capture.captures import Read
from millstream.catalog import Catalog
from millstream.catalog.models import Dependency, SourceKind, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import MillstreamError
from millstream.lake.locks import LockManager
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.passes.pass_request import Taken
from millstream.refresh.execute import Progress
from millstream.refresh.inputs import base_tables, paths_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassFrontier:
    """What a pass brings its stream tables to.

    Args:
        paths: where the base tables lie.
        versions: their newest versions.
        captured: those of them that are mirrors, with the versions that their tick has brought them to.
        failures: by stream table, why what it reads could not be brought forward.
    """

    data_timestamp: datetime
    paths: Mapping[str, str]
    versions: Mapping[str, int]
    captured: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, MillstreamError] = field(default_factory=dict)


class Frontiers:
    """Takes the frontiers of passes."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        definitions: RecordedDefinitions,
        captures: Captures,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._definitions = definitions
        self._captures = captures
        self._clock = clock
        self._progress = progress

    def take(
        self,
        tables: Sequence[StreamTable],
        held: HeldSnapshot | None = None,
        taken: Taken | None = None,
        *,
        is_waiting: bool = True,
    ) -> PassFrontier:
        """Bring what some stream tables read forward, and take the newest versions of it.

        Args:
            held: takes over the snapshot of the database.
            taken: databases that were brought forward already; if that was not for all these tables, they are again.
            is_waiting: otherwise a database that is known to be unreachable is not tried.
        """
        readers = {str(table.name): read for table in tables if (read := read_of(table)).names}
        captured: Mapping[str, int]
        if taken is not None and readers.keys() <= taken.readers:
            advanced = taken.advanced
            now, captured = taken.at, advanced.versions if readers else {}
            failures = {name: error for name, error in advanced.refused.items() if name in readers}
        else:
            now = self._clock()
            captured, failures = self._captured(readers, held, is_waiting=is_waiting)
        paths: dict[str, str] = {}
        versions: dict[str, int] = {}
        for table in tables:
            if str(table.name) in failures:
                continue
            try:
                found = self._versions(table, captured, versions)
            except MillstreamError as error:
                failures[str(table.name)] = error
            else:
                paths |= found[0]
                versions |= found[1]
        _log.debug("frontier: %s", versions)
        return PassFrontier(now, paths, versions, captured, failures)

    def _captured(
        self, readers: Mapping[str, Read], held: HeldSnapshot | None, *, is_waiting: bool
    ) -> tuple[Mapping[str, int], dict[str, MillstreamError]]:
        """Bring the databases behind the tables to now; one snapshot cuts all tables of a database."""
        self._captures.end_forgotten()
        if not readers:
            return {}, {}
        names = sorted({name for read in readers.values() for name in read.names})
        started = time.perf_counter()
        hold = held.hold if held is not None else None
        advanced = self._captures.advance(readers, hold, is_waiting=is_waiting)
        _log.debug("brought %s forward in %.0f ms", ", ".join(names), (time.perf_counter() - started) * 1000)
        _log.debug("versions of the mirrors: %s", advanced.versions)
        return advanced.versions, dict(advanced.refused)

    def _versions(
        self, table: StreamTable, captured: Mapping[str, int], known: Mapping[str, int]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """The paths and newest versions of the base tables that a stream table reads directly."""
        store = self._workers.here().store
        found = base_tables(self._catalog, (table,))
        for name, item in found.items():
            if item.details.landing is not None and name not in known:
                self._progress(f"copying {name}, which records no changes")
                with self._locks.acquire([_landing_key(name)]):
                    self._definitions.land(item)
        paths = paths_of(found)
        given = {**captured, **known}
        return paths, {n: given[n] if n in given else store.version(path) for n, path in paths.items()}


def read_of(table: StreamTable) -> Read:
    """What a stream table reads of attached databases."""
    read = [d for d in table.definition.dependencies if _is_attached(d)]
    named_views = {d.name for d in read if d.kind is SourceKind.VIEW and d.columns_used}
    return Read(frozenset(d.name for d in read), frozenset(named_views))


def _is_attached(dependency: Dependency) -> bool:
    kinds = {SourceKind.TABLE, SourceKind.VIEW}
    return dependency.kind in kinds and TableName.parse(dependency.name).database is not None


def _landing_key(name: str) -> str:
    return f"landing-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
