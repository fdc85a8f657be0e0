"""The captured tables of attached databases: begun with the first dependent, ended with the last."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path

from millstream.capture.backlog import Backlog, BacklogLimits, read_backlog
from millstream.capture.beginning import Beginning
from millstream.capture.change_buffers import buffer_settings
from millstream.capture.database_access import DatabaseAccess, databases_of
from millstream.capture.dependents import Dependents
from millstream.capture.ending import Ending
from millstream.capture.installation import guard_captured_tables
from millstream.capture.mode_notice import mode_change_between
from millstream.capture.mode_switch import Switch
from millstream.capture.orphans import databases_to_end, is_to_be_ended
from millstream.capture.outages import Outages
from millstream.capture.quarantine import may_have_passed
from millstream.capture.refused_writes import warnings_between
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.capture.tick import run_tick
from millstream.capture.tick_plan import TickRequest
from millstream.capture.tick_state import TickContext, Ticked
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, CaptureMode
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.naming import TableName
from millstream.notices import CaptureWarning, NoticeWarning, warn
from millstream.postgres.connection import Connection
from millstream.postgres.pool import ConnectionPool
from millstream.settings import Settings
from millstream.sources.postgres.values.types import MirrorColumn
from millstream.sources.postgres.wal.slot import slot_of

_log = logging.getLogger(__name__)

_ENDING_SECONDS = 60.0
"""How long to wait before another attempt to end captures."""
_SHORT_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Read:
    """What a stream table reads of attached databases.

    Args:
        names: the tables and views, by their names in queries.
        named_views: the views that its query names directly; the others are read through views.
    """

    names: frozenset[str]
    named_views: frozenset[str] = frozenset()

    def is_of(self, database: str) -> bool:
        """Whether it reads anything of a database."""
        return database in databases_of(self.names)


@dataclass(frozen=True)
class Advanced:
    """Databases that were brought forward.

    Args:
        versions: of all mirrors of the databases, by the names of their tables; quarantined tables are not among them.
        refused: by stream table, why something that it reads could not be brought forward.
    """

    versions: Mapping[str, int]
    refused: Mapping[str, MillstreamError]


class Look(Enum):
    """What a look at a database has found."""

    NOTHING_CAPTURED = auto()
    BUSY = auto()
    """Another tick of the database is running."""
    IDLE = auto()
    """Nothing was written since the last tick."""
    TICKED = auto()


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
        self._outages = Outages()
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
        readers: Mapping[str, Read],
        at_snapshot: Callable[[SourceSnapshot], None] | None = None,
        *,
        is_waiting: bool = True,
    ) -> Advanced:
        """Bring the databases that some stream tables read up to date.

        This brings forward every table of the databases. What cannot be brought forward is refused to its readers.

        Args:
            readers: what each stream table reads, by the stream table's name.
            at_snapshot: called with the snapshot the mirrors were brought to, while it can be exported.
            is_waiting: otherwise a database that did not answer a moment ago is refused without another attempt.
        """
        versions: dict[str, int] = {}
        refused: dict[str, MillstreamError] = {}
        for database in databases_of({name for read in readers.values() for name in read.names}):
            concerned = {reader: read for reader, read in readers.items() if read.is_of(database)}
            try:
                if not is_waiting:
                    self._outages.refuse(database)
                ticked = self._advance(database, {n for read in concerned.values() for n in read.names}, at_snapshot)
            except MillstreamError as error:
                refused |= dict.fromkeys(concerned.keys() - refused.keys(), error)
                continue
            versions |= ticked.versions
            for reader, read in concerned.items():
                if (refusal := ticked.refusal(read.names, read.named_views)) is not None:
                    refused.setdefault(reader, refusal)
        return Advanced(versions, refused)

    def _advance(
        self, database: str, names: Collection[str], at_snapshot: Callable[[SourceSnapshot], None] | None
    ) -> Ticked:
        is_first = database not in self._ticked
        with self._access.ticking(database):
            ticked = self._tick(database, names, at_snapshot=at_snapshot)
        self._settle(database, ticked, is_first=is_first)
        return ticked

    def _settle(self, database: str, ticked: Ticked, *, is_first: bool) -> None:
        """Do what does not need the database's lock after a tick."""
        if not ticked.all_captures or self._dependents.unread(ticked.all_captures):
            self._end_forgotten(database)
        if is_first and not self._settings.block_source_ddl:
            self._guard(database)

    def watch(self, name: str) -> Look:
        """Look at a database for its own sake, and tick it if something was written; nobody waits for it.

        So changes of its tables and views are noticed, its slot is advanced, a switch of the capture mode goes on and
        quarantined tables are retried although no stream table that reads it is due.

        Raises:
            MillstreamError: NOT_ATTACHED, DATABASE_UNREACHABLE, DATABASE_UNFIT, ...
        """
        database, captures = self._access.get(name), self._catalog.captures(name)
        if not captures:
            self._end_forgotten(name)
            return Look.NOTHING_CAPTURED
        try:
            with self._connections.visiting(database):  # not under the lock: an attempt to connect may take long
                self._outages.clear(name)
        except MillstreamError as error:
            self._outages.note(name, error)
            raise
        now, is_first = self._clock(), name not in self._ticked
        retried = {c.name for c in captures if may_have_passed(c, now)}
        with ExitStack() as held:
            try:
                held.enter_context(self._access.ticking(name, timeout=0))
            except MillstreamError as error:
                if error.code is not Code.LOCK_TIMEOUT:
                    raise
                return Look.BUSY
            ticked = self._tick(name, retried)
        self._settle(name, ticked, is_first=is_first)
        return Look.IDLE if ticked.is_idle else Look.TICKED

    def backlog(self, name: str, limits: BacklogLimits) -> Backlog:
        """What waits in a database to be read.

        Raises:
            MillstreamError: NOT_ATTACHED, DATABASE_UNREACHABLE.
        """
        database = self._access.get(name)
        has_slot = database.mode is not CaptureMode.TRIGGER
        slot = slot_of(self._catalog.lake_id(), name).name if has_slot else None
        settings, captures = buffer_settings(database, self._catalog), self._catalog.captures(name)
        with self._connections.visiting(database) as connection:
            return read_backlog(connection, slot, settings, captures, limits)

    def _tick(
        self,
        name: str,
        wanted: Collection[str] = (),
        wider: Mapping[str, Sequence[MirrorColumn]] | None = None,
        at_snapshot: Callable[[SourceSnapshot], None] | None = None,
    ) -> Ticked:
        database, tries, began = self._access.get(name), itertools.count(), time.monotonic()
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
                own=self._connections.own,
                switch=self._switches.setdefault(name, Switch()),
                began=time.monotonic(),
            )
            current = self._access.get(name) if next(tries) else database  # a first attempt may have changed it
            return run_tick(context, request, current, at_snapshot)

        try:
            ticked = self._connections.run(database, run)
        except MillstreamError as error:
            self._outages.note(name, error)
            self._report(database, self._access.get(name))
            raise
        self._outages.clear(name)
        _log_tick(ticked, time.monotonic() - began)
        self._report(database, ticked.database)
        self._ticked.add(name)
        return ticked

    def _report(self, before: AttachedDatabase, after: AttachedDatabase) -> None:
        if (change := mode_change_between(before, after)) is not None:
            self._progress(change.sentence)
            if change.is_setback:
                self._alert(change.sentence)
        for sentence in warnings_between(before, after):
            self._alert(sentence)

    def _guard(self, database: str) -> None:
        guard_captured_tables(self._access, self._settings, database, self._progress)

    # Beginning

    @contextmanager
    def beginning(self, used: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Capture the columns that a query uses; the caller records the query's stream table inside the block.

        If the block fails, captures that began are ended. The user is warned about changes that capture does not see.

        Args:
            used: columns by the tables' full names; tables that are in no attached database are ignored.

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
        """Mark that this thread holds the locks to begin and end captures, so that its own ticks end none."""
        self._here.defining = frozenset(databases)
        try:
            yield
        finally:
            self._here.defining = frozenset()

    # Ending

    def end_unread(self, names: Collection[str]) -> None:
        """End the captures that no stream table reads any more, in the databases of some tables or views.

        If a database is unreachable or busy, this warns the user, and a later tick ends them.
        """
        databases = databases_of(names)
        try:
            for database in databases:
                with self._access.defining([database]):
                    self._ending.end_unread(database)
        except MillstreamError as error:
            if error.code not in (Code.DATABASE_UNREACHABLE, Code.LOCK_TIMEOUT):
                raise
            later = f"capture could not be ended in {', '.join(databases)}; a later tick retries: {error.message}"
            warn(later, NoticeWarning)

    def end_forgotten(self) -> None:
        """End captures that outlived a crash or an unreachable database, as far as possible."""
        for database in databases_to_end(self._catalog):
            self._end_forgotten(database)

    def _end_forgotten(self, database: str) -> None:
        """End them in one database, unless this thread is defining a stream table or an attempt failed recently."""
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
            self._progress(f"capture could not be ended in {database}; a later tick retries: {error.message}")


def _log_tick(ticked: Ticked, seconds: float) -> None:
    """Log a tick; the attribute `millstream_tick` of the record holds the same as data."""
    before = {c.id: c.version for c in ticked.all_captures}
    landed = sorted(c.name for c in ticked.captures.values() if c.version != before.get(c.id))
    quarantined = {ticked.captures[id_].name: str(error.code) for id_, error in ticked.quarantined.items()}
    facts = {
        "database": ticked.database.name,
        "mode": str(ticked.database.mode),
        "is_idle": ticked.is_idle,
        "landed": landed,
        "quarantined": quarantined,
        "duration_ms": round(seconds * 1000, 1),
    }
    said = "nothing was written" if ticked.is_idle else f"landed changes of {', '.join(landed) or 'no table'}"
    if quarantined:
        said = f"{said}; quarantined {', '.join(sorted(quarantined))}"
    level = logging.DEBUG if ticked.is_idle else logging.INFO
    name, milliseconds = ticked.database.name, seconds * 1000
    _log.log(level, "tick of %s in %.0f ms: %s", name, milliseconds, said, extra={"millstream_tick": facts})
