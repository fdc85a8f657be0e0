"""The captured tables of attached databases: begun with their first reader, brought forward, ended with the last."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from millstream.capture.beginning import Beginning
from millstream.capture.database_access import DatabaseAccess, databases_of
from millstream.capture.dependents import Dependents
from millstream.capture.ending import Ending
from millstream.capture.installation import guard_captured_tables
from millstream.capture.mode_notice import move_between
from millstream.capture.mode_switch import Switch
from millstream.capture.orphans import databases_to_end, is_to_be_ended
from millstream.capture.refused_writes import warnings_between
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.capture.tick import run_tick
from millstream.capture.tick_plan import TickRequest
from millstream.capture.tick_state import TickContext, Ticked
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.naming import TableName
from millstream.notices import CaptureWarning, NoticeWarning, warn
from millstream.postgres.connection import Connection
from millstream.postgres.pool import ConnectionPool
from millstream.settings import Settings
from millstream.sources.postgres.values.types import MirrorColumn

_ENDING_SECONDS = 60.0
"""How long it takes until what could not be ended is tried again."""
_SHORT_PATIENCE_SECONDS = 1.0


class Captures:
    """The captured tables of a lake's attached databases."""

    def __init__(
        self,
        root: Path,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        settings: Settings,
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
        alert: Callable[[str], None] | None = None,
        connections: ConnectionPool | None = None,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._alert = alert or partial(warn, category=CaptureWarning)
        self._mirrors = root / "mirrors"
        self._access = DatabaseAccess(catalog, locks)
        self._connections = connections or ConnectionPool()
        self._dependents = Dependents(catalog)
        self._ticked: set[str] = set()
        self._switches: dict[str, Switch] = {}
        self._next_ending: dict[str, float] = {}
        self._here = threading.local()
        self._ending = Ending(self._access, settings, self._mirrors, self._switches, progress)

    def close(self) -> None:
        """Close the connections."""
        for switch in self._switches.values():
            switch.close()
        self._connections.close()

    # Bringing forward

    def advance(
        self,
        names: Collection[str],
        named_views: Collection[str] = (),
        at_snapshot: Callable[[SourceSnapshot], None] | None = None,
    ) -> dict[str, int]:
        """Bring the databases of some tables or views to now; gives the versions of their mirrors, by name.

        All tables of the databases are brought forward that can be; one that cannot is not among the versions.

        Args:
            named_views: those of the views that queries name themselves; the others are named by views.
            at_snapshot: called with the snapshot the mirrors were brought to, while it can be exported.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, ...; or why one of those tables cannot be brought forward:
                VALUE_UNSUPPORTED, PRIVILEGE_MISSING, CAPTURE_LOST, LOCK_TIMEOUT, ...; PRIVILEGE_MISSING for a view
                through which PostgreSQL would not show the tables that its text reads.
        """
        versions: dict[str, int] = {}
        for database in databases_of(names):
            is_first = database not in self._ticked
            with self._access.ticking(database):
                ticked = self._tick(database, names, at_snapshot=at_snapshot)
            versions |= ticked.versions
            if not ticked.all_captures or self._dependents.unread(ticked.all_captures):
                self._end_forgotten(database)
            if is_first and not self._settings.block_source_ddl:
                self._guard(database)
            ticked.refuse(names, named_views)
        return versions

    def _tick(
        self,
        name: str,
        wanted: Collection[str] = (),
        wider: Mapping[str, Sequence[MirrorColumn]] | None = None,
        at_snapshot: Callable[[SourceSnapshot], None] | None = None,
    ) -> Ticked:
        database, tries = self._access.get(name), itertools.count()
        request = TickRequest(wanted, wider or {}, at_snapshot is not None, name not in self._ticked)

        def run(connection: Connection) -> Ticked:
            context = TickContext(
                catalog=self._catalog,
                dependents=self._dependents,
                worker=self._workers.here(),
                settings=self._settings,
                now=self._clock,
                progress=self._progress,
                connection=connection,
                second=lambda: self._connections.second(database),
                switch=self._switches.setdefault(name, Switch()),
                began=time.monotonic(),
            )
            current = self._access.get(name) if next(tries) else database  # a first try may have moved it
            return run_tick(context, request, current, at_snapshot)

        try:
            ticked = self._connections.run(database, run)
        except MillstreamError:
            self._report(database, self._access.get(name))
            raise
        self._report(database, ticked.database)
        self._ticked.add(name)
        return ticked

    def _report(self, before: AttachedDatabase, after: AttachedDatabase) -> None:
        if (move := move_between(before, after)) is not None:
            self._progress(move.sentence)
            if move.is_setback:
                self._alert(move.sentence)
        for sentence in warnings_between(before, after):
            self._alert(sentence)

    def _guard(self, database: str) -> None:
        guard_captured_tables(self._access, self._settings, database, self._progress)

    # Beginning

    @contextmanager
    def beginning(self, used: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Capture the columns that a query uses; the query's stream table is to be recorded inside the block.

        What was begun is ended again if the block fails. The user is warned of changes that the captures do not see.

        Args:
            used: columns by the tables' full names; tables that are in no attached database are left out.

        Raises:
            MillstreamError: UNKNOWN_TABLE, UNSUPPORTED_TYPE, PRIVILEGE_MISSING, DATABASE_UNREACHABLE, LOCK_TIMEOUT, ...
        """
        databases = databases_of(used)
        if not databases:
            yield
            return
        begin = Beginning(
            access=self._access,
            workers=self._workers,
            settings=self._settings,
            mirrors=self._mirrors,
            now=self._clock,
            progress=self._progress,
            tick=lambda name, wider: self._tick(name, wider=wider),
        ).begin
        with self._access.defining(databases), self._defining(databases):
            try:
                parsed = [(TableName.parse(name), columns) for name, columns in used.items()]
                notes = [begin(name, columns) for name, columns in parsed if name.database is not None]
                for database in databases:
                    self._guard(database)
                for note in filter(None, notes):
                    self._alert(note)
                yield
            except BaseException:
                for database in databases:
                    self._ending.end_unread(database)
                raise

    @contextmanager
    def _defining(self, databases: Collection[str]) -> Iterator[None]:
        """This thread holds the locks to begin and end captures: its ticks end nothing meanwhile."""
        self._here.defining = frozenset(databases)
        try:
            yield
        finally:
            self._here.defining = frozenset()

    # Ending

    def end_unread(self, names: Collection[str]) -> None:
        """End the captures that no stream table reads any more, in the databases of some tables or views.

        If a database cannot be reached or is busy, the user is warned, and a later tick ends them.
        """
        databases = databases_of(names)
        try:
            for database in databases:
                with self._access.defining([database]):
                    self._ending.end_unread(database)
        except MillstreamError as error:
            if error.code not in (Code.DATABASE_UNREACHABLE, Code.LOCK_TIMEOUT):
                raise
            later = f"capture could not be ended in {', '.join(databases)} and will be later: {error.message}"
            warn(later, NoticeWarning)

    def end_forgotten(self) -> None:
        """End what is left after a crash, or from a time when a database could not be reached, as far as possible."""
        for database in databases_to_end(self._catalog):
            self._end_forgotten(database)

    def _end_forgotten(self, database: str) -> None:
        """Not while this thread is defining a reader; and if it fails now, not again for a while."""
        is_defining = database in getattr(self._here, "defining", ())
        if is_defining or time.monotonic() < self._next_ending.get(database, 0.0):
            return
        try:
            if not is_to_be_ended(self._catalog, self._access.get(database)):
                return
            with self._access.defining([database], timeout=0):
                self._ending.end_unread(database, _SHORT_PATIENCE_SECONDS)
        except MillstreamError as error:
            self._next_ending[database] = time.monotonic() + _ENDING_SECONDS
            self._progress(f"capture could not be ended in {database} and will be later: {error.message}")
