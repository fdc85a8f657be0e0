"""Which tables of attached databases are captured: begun with their first reader, widened, ended with the last.

Three kinds of locks, always in this order: those of stream tables; `captures-<database>`, under which captures begin
and end; `database-<database>`, under which mirrors are brought forward. The second is held from before a capture begins
until its reader is recorded, so that nobody takes it for one that nobody reads. A table is loaded under the second
alone: the other tables of its database go on meanwhile.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psycopg

from millstream.catalog import Catalog
from millstream.catalog.attached import POSITION, RESYNC, STALE, AttachedDatabase, Capture, CaptureMode, Position
from millstream.catalog.models import ObjectKind, new_id
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.engine.storage import Txn
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.refresh.capture import refused_writes
from millstream.refresh.capture.connections import Connections, coded
from millstream.refresh.capture.cut import Cut, cutting
from millstream.refresh.capture.leftovers import clear, with_leftovers
from millstream.refresh.capture.readers import Readers, mirror_object
from millstream.refresh.capture.record import (
    BUFFER,
    GUARDED,
    NOT_NULL,
    WHOLE,
    buffer_of,
    buffer_settings,
    columns_of,
    is_kept,
    is_whole,
)
from millstream.refresh.capture.source import Source
from millstream.refresh.capture.switch import Switch
from millstream.refresh.capture.telling import move_between
from millstream.refresh.capture.tick import Tick
from millstream.refresh.capture.verdicts import key_of
from millstream.refresh.capture.wanted import is_as_it_was, is_of, refuse_view, unseen, wanted_columns
from millstream.refresh.locks import LockManager
from millstream.refresh.unread import forgotten, has_leftovers, is_forgotten, is_wal_unread, unread
from millstream.settings import Settings
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.connection import Connection, connect
from millstream.sources.postgres.ddl_guard import guard
from millstream.sources.postgres.installed import always_statements
from millstream.sources.postgres.looks import look_at
from millstream.sources.postgres.relations import Relation, find_relation
from millstream.sources.postgres.slot import flush_wal
from millstream.sources.postgres.types import MirrorColumn, mirror_schema

_LOAD = 0
"""The transaction number of a mirror's first commit; ticks count from 1."""
_ENDING_SECONDS = 60.0
"""How long what could not be ended is left alone."""
_PATIENCE_SECONDS, _SHORT_PATIENCE_SECONDS = 10.0, 1.0
_TRIES = 5


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
        warn: Callable[[str], None],
    ) -> None:
        self._root = root / "mirrors"
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._warn = warn
        self._connections = Connections()
        self._readers = Readers(catalog)
        self._ticked: set[str] = set()
        self._switches: dict[str, Switch] = {}
        self._next_ending: dict[str, float] = {}
        self._here = threading.local()

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
        at_cut: Callable[[Cut], None] | None = None,
    ) -> dict[str, int]:
        """Bring the databases of some tables or views to now; gives the versions of their mirrors, by name.

        All tables of the databases are brought forward that can be; one that cannot is not among the versions.

        Args:
            named_views: those of the views that queries name themselves; the others are named by views.
            at_cut: called with the snapshot the mirrors were brought to, while it can be exported.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, ...; or why one of those tables cannot be brought forward:
                VALUE_UNSUPPORTED, PRIVILEGE_MISSING, CAPTURE_LOST, LOCK_TIMEOUT, ...; PRIVILEGE_MISSING for a view
                through which PostgreSQL would not show what its text reads.
        """
        versions: dict[str, int] = {}
        for database in _databases(names):
            is_first = database not in self._ticked
            with self._locks.acquire([_database_key(database)]):
                ticked = self._tick(database, names, at_cut=at_cut)
            versions |= ticked.versions
            if not ticked.recorded or self._readers.unread(ticked.recorded):
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
        at_cut: Callable[[Cut], None] | None = None,
    ) -> Tick:
        database, tries = self._database(name), itertools.count()

        def run(connection: Connection) -> Tick:
            tick = Tick(
                catalog=self._catalog,
                readers=self._readers,
                worker=self._workers.here(),
                settings=self._settings,
                now=self._clock,
                progress=self._progress,
                connection=connection,
                second=lambda: self._connections.second(database),
                switch=self._switches.setdefault(name, Switch()),
                database=self._database(name) if next(tries) else database,  # a first try may have moved it
                wanted=wanted,
                wider=wider or {},
                at_cut=at_cut,
                is_first=name not in self._ticked,
            )
            tick.run()
            return tick

        try:
            ticked = self._connections.run(database, run)
        except MillstreamError:
            self._tell(database, self._database(name))
            raise
        self._tell(database, ticked.database)
        self._ticked.add(name)
        return ticked

    def _tell(self, before: AttachedDatabase, after: AttachedDatabase) -> None:
        if (move := move_between(before, after)) is not None:
            self._progress(move.sentence)
            if move.is_setback:
                self._warn(move.sentence)
        for sentence in refused_writes.news(before, after):
            self._warn(sentence)

    def _database(self, name: str) -> AttachedDatabase:
        found = self._catalog.find_database(name)
        if found is None:
            raise MillstreamError(Code.NOT_ATTACHED, f"there is no attached database {name}", hint="attach it again")
        return found

    # Beginning

    @contextmanager
    def beginning(self, used: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
        """Capture those columns of those tables; the reader is to be recorded inside the block.

        What was begun is ended again if the block fails. Gives sentences for the user about what was begun.

        Args:
            used: columns by the tables' full names.

        Raises:
            MillstreamError: UNKNOWN_TABLE, UNSUPPORTED_TYPE, PRIVILEGE_MISSING, DATABASE_UNREACHABLE, LOCK_TIMEOUT, ...
        """
        databases = _databases(used)
        with self._locks.acquire([_captures_key(d) for d in databases]), self._defining(databases):
            try:
                said = [note for name, columns in used.items() if (note := self._begin(TableName.parse(name), columns))]
                for database in databases:
                    self._guard(database)
                yield said
            except BaseException:
                for database in databases:
                    self._end_unread(database)
                raise

    @contextmanager
    def _defining(self, databases: Collection[str]) -> Iterator[None]:
        """This thread has the locks to begin and end captures: ticks meanwhile take nothing for forgotten."""
        self._here.defining = frozenset(databases)
        try:
            yield
        finally:
            self._here.defining = frozenset()

    def _begin(self, name: TableName, used: Sequence[str]) -> str | None:
        """What its user should know of a capture that was begun."""
        assert name.database is not None
        database = self._database(name.database)
        with self._own_connection(database) as connection, self._kept_if_not_loaded(database.name, str(name)):
            for _ in range(_TRIES):
                existing = next((c for c in self._catalog.captures(database.name) if c.name == str(name)), None)
                relation = find_relation(connection, name.parts[2], name.parts[1], exact=True)
                refuse_view(relation)
                ranges = _ranges(database, relation)
                columns = wanted_columns(relation, used, ranges)
                if existing is not None and is_kept(existing) and is_of(existing, relation, ranges):
                    self._show(existing)
                    have = {column for column, _, _ in existing.columns}
                    more = [c for c in columns if c.name not in have]
                    if more:
                        self._widen(connection, database, existing, relation, more)
                    return None
                try:
                    capture = self._load(connection, database, relation, columns, existing)
                except MillstreamError as error:
                    if error.code is not Code.SOURCE_CHANGED:
                        raise
                    continue  # its name means another one now
                if capture is None:
                    continue
                if BUFFER not in capture.details or buffer_of(capture).is_always:
                    return None
                return unseen(capture, always_statements(connection, relation, buffer_of(capture).schema))
        raise MillstreamError(
            Code.LOCK_TIMEOUT, f"{name} is being altered all the time", hint="try again when that has ended"
        )

    @contextmanager
    def _kept_if_not_loaded(self, database: str, name: str) -> Iterator[None]:
        """Around a load: if it fails, those who read the table already go on with what they have."""
        before = next((c for c in self._catalog.captures(database) if c.name == name and c.version is not None), None)
        try:
            yield
        except BaseException:
            now = next((c for c in self._catalog.captures(database) if c.name == name), None)
            if before is not None and now is not None and now.version is None:
                marked = replace(before, details={**before.details, RESYNC: "it could not be loaded anew"})
                self._record(marked, is_another=True)
            raise

    def _load(
        self,
        connection: Connection,
        database: AttachedDatabase,
        relation: Relation,
        columns: Sequence[MirrorColumn],
        old: Capture | None,
    ) -> Capture | None:
        """Begin to capture a table, and load it into a new mirror; None if it was altered meanwhile.

        Args:
            old: what is recorded of it and cannot be brought forward any more; its mirror stays until there is another.
        """
        directory = new_id()
        capture = Capture(
            id=old.id if old is not None else directory,
            database=database.name,
            schema=relation.schema,
            table=relation.name,
            oid=relation.oid,
            columns=tuple((c.name, c.pg_type, c.spark_type) for c in columns),
            key=(),
            shape="",
            filenodes="",
            path=str(self._root / directory),
            details={} if relation.kind.is_captured else {WHOLE: True},
        )
        # So that whoever comes after a crash finds what to remove.
        self._record(capture, is_another=old is not None and old.oid != capture.oid)
        if not is_whole(capture):
            capture = self._captured(connection, capture, relation)
        begun = self._database(database.name).position
        self._progress(f"loading {capture.name}")
        address, trusted = Address(database.address), self._settings.trusted_roles
        with cutting(address, connection, {capture.id: relation}, trusted) as cut:
            if not is_as_it_was(cut.connection, relation, columns, _ranges(database, relation)):
                return None
            look = look_at(cut.connection, {relation.oid: [c.name for c in columns]})[relation.oid]
            details = {**capture.details, NOT_NULL: list(look.not_null)}
            key = key_of(capture, look)
            capture = replace(capture, shape=look.shape, filenodes=look.storage, key=key, details=details)
            flush_wal(connection)
            version = self._copy(cut, capture)
        loaded = replace(capture, version=version, details={**capture.details, POSITION: {"snapshot": cut.position}})
        self._record(loaded, position=cut.position, begun=begun)
        self._show(loaded)
        return loaded

    def _show(self, capture: Capture) -> None:
        """Have the lake's name for a table mean this mirror, and let go of others."""
        known = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(capture.name))
        if known is None or known.location != capture.path or STALE in known.details:
            self._catalog.put_lake_object(mirror_object(capture), replace=True)
            self._sweep()

    def _captured(self, connection: Connection, capture: Capture, relation: Relation) -> Capture:
        """Have a table's changes recorded, by the way its database is captured."""
        database = self._database(capture.database)
        if database.mode is not CaptureMode.WAL:
            return Source(connection, self._catalog, database).capture(capture, relation)[0]
        with self._locks.acquire([_database_key(capture.database)]):
            database = self._database(capture.database)
            after, now = Source(connection, self._catalog, database).capture(capture, relation)
            self._catalog.put_database(now)
        return after

    def _copy(self, cut: Cut, capture: Capture) -> int:
        worker, columns = self._workers.here(), columns_of(capture)
        worker.store.create(capture.path, mirror_schema(columns), stats_columns=capture.key)
        txn = Txn(capture.id, _LOAD, is_durable=True)
        version = cut.load(worker, capture, columns, txn, cut.metadata(), self._progress)
        worker.store.make_durable(capture.path, -1, version)
        return version

    def _widen(
        self,
        connection: Connection,
        database: AttachedDatabase,
        capture: Capture,
        relation: Relation,
        more: Sequence[MirrorColumn],
    ) -> None:
        """More columns for a mirror that others read: its rows are written anew, which those do not see."""
        columns = (*capture.columns, *((c.name, c.pg_type, c.spark_type) for c in more))
        self._progress(f"capturing {', '.join(c.name for c in more)} of {capture.name} too")
        with self._locks.acquire([_database_key(database.name)]):
            if not is_whole(capture):
                now = next(c for c in self._catalog.captures(database.name) if c.id == capture.id)
                source = Source(connection, self._catalog, self._database(database.name))
                after, changed = source.widen(replace(now, columns=columns), relation)
                self._catalog.put_database(changed, captures=[replace(after, columns=now.columns)])
            self._tick(database.name, wider={capture.id: more}).refuse([capture.name])
        left = next(c for c in self._catalog.captures(database.name) if c.id == capture.id)
        if not is_kept(left) or len(left.columns) < len(columns):
            raise MillstreamError(
                Code.SOURCE_CHANGED, f"{capture.name} was altered while it was read", hint="try again"
            )

    def _guard(self, name: str) -> None:
        """Have the database refuse DDL that changes captured columns if that is wanted, and only then."""
        database, is_wanted = self._database(name), self._settings.block_source_ddl
        if not is_wanted and not database.details.get(GUARDED):
            return
        kept = [c for c in self._catalog.captures(name) if is_kept(c)] if is_wanted else []
        with self._own_connection(database) as connection:
            schema = buffer_settings(database, self._catalog).schema
            can = guard(connection, schema, {c.oid: [n for n, _, _ in c.columns] for c in kept})
        if not can:
            self._progress(f"{name} cannot refuse DDL (block_source_ddl): its role may make no event triggers")
        if bool(database.details.get(GUARDED)) != bool(can and kept):
            with self._locks.acquire([_database_key(name)]):
                now = self._database(name)
                self._catalog.put_database(replace(now, details={**now.details, GUARDED: bool(can and kept)}))

    def _record(
        self,
        capture: Capture,
        position: str | None = None,
        begun: Position | None = None,
        *,
        is_another: bool = False,
    ) -> None:
        """Record a capture.

        Args:
            is_another: it was of another table until now, whose triggers the next tick removes.
            position: the snapshot it was loaded at.
            begun: where its database was when its changes began to be recorded.
        """
        with self._locks.acquire([_database_key(capture.database)]):
            database = self._database(capture.database)
            if position is not None and not is_whole(capture) and database.mode is CaptureMode.WAL:
                capture = _placed(capture, database.position or {}, begun or {})
            if position is not None and database.position is None:
                database = replace(database, position={"snapshot": position}, reached_at=self._clock())
            if is_another:
                database = with_leftovers(database)
            self._catalog.put_database(database, captures=[capture])

    # Ending

    def end_unread(self, databases: Collection[str]) -> None:
        """End the captures that no stream table reads any more.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, LOCK_TIMEOUT: then a later tick does it.
        """
        for database in sorted(databases):
            with self._locks.acquire([_captures_key(database)]):
                self._end_unread(database)

    def end_forgotten(self) -> None:
        """End what is left after a crash, or from a time when a database could not be reached: as far as it can be."""
        for database in forgotten(self._catalog):
            self._end_forgotten(database)

    def _end_forgotten(self, database: str) -> None:
        """Not while somebody is about to define; and if it cannot be done now, not again for a while."""
        is_defining = database in getattr(self._here, "defining", ())
        if is_defining or time.monotonic() < self._next_ending.get(database, 0.0):
            return
        try:
            if not is_forgotten(self._catalog, self._database(database)):
                return
            with self._locks.acquire([_captures_key(database)], timeout=0):
                self._end_unread(database, _SHORT_PATIENCE_SECONDS)
        except MillstreamError as error:
            self._next_ending[database] = time.monotonic() + _ENDING_SECONDS
            self._progress(f"capture could not be ended in {database} and will be later: {error.message}")

    def _end_unread(self, database: str, patience: float | None = None) -> None:
        ended = unread(self._catalog, database)
        if ended:
            with self._own_connection(self._database(database)) as connection:
                for capture in ended:
                    self._end(connection, capture, patience)
            self._guard(database)
        if is_wal_unread(self._catalog, self._database(database)):
            with self._own_connection(self._database(database)) as connection:
                self._leave_wal(connection, database)
        if has_leftovers(self._catalog, self._database(database)):
            with self._own_connection(self._database(database)) as connection:
                self._clear(connection, database, patience)
        self._sweep()

    def _end(self, connection: Connection, capture: Capture, patience: float | None = None) -> None:
        with self._locks.acquire([_database_key(capture.database)]):
            if not is_whole(capture):
                source = Source(connection, self._catalog, self._database(capture.database))
                if (after := source.end(capture, patience)) != source.database:
                    self._catalog.put_database(after)
            name = TableName.parse(capture.name)
            known = self._catalog.lake_object(ObjectKind.TABLE, name)
            if known is not None and known.location == capture.path:
                self._catalog.drop_lake_object(ObjectKind.TABLE, name)
            self._catalog.drop_capture(capture.id)
        shutil.rmtree(capture.path, ignore_errors=True)

    def _leave_wal(self, connection: Connection, name: str) -> None:
        """Let go of the WAL that a slot keeps for nobody."""
        with self._locks.acquire([_database_key(name)]):
            if (switch := self._switches.pop(name, None)) is not None:
                switch.close()
            self._catalog.put_database(Source(connection, self._catalog, self._database(name)).leave_wal())

    def _clear(self, connection: Connection, name: str, patience: float | None) -> None:
        """Remove what is left of tables that were captured before others that nobody reads either."""
        with self._locks.acquire([_database_key(name)]):
            clear(connection, self._catalog, self._database(name), patience or _PATIENCE_SECONDS)

    def _sweep(self) -> None:
        """Delete mirrors that a crash has left without a record."""
        if not self._root.exists():
            return
        found = list(self._root.iterdir())
        # Asked after that: a capture is recorded before its mirror is made, and others may be loading theirs now.
        known = {c.path for c in self._catalog.captures()}
        known |= {str(item.location) for item in self._catalog.lake_objects(ObjectKind.TABLE)}
        for directory in found:
            if str(directory) not in known:
                shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def _own_connection(self, database: AttachedDatabase) -> Iterator[Connection]:
        """For work that is not done under the database's lock, or fails without being tried again."""
        try:
            with connect(Address(database.address)) as connection:
                yield connection
        except psycopg.Error as error:
            raise coded(error, database.name) from error


def _placed(capture: Capture, now: Position, begun: Position) -> Capture:
    """A loaded table whose changes come from the WAL: where they begin, if the slot still has all of them.

    Other ticks have gone on during the load, and the slot with them.
    """
    if now.get("lsn") == begun.get("lsn"):
        return replace(capture, details={**capture.details, POSITION: {**capture.details[POSITION], "lsn": now["lsn"]}})
    return replace(capture, details={**capture.details, RESYNC: "others were read from the WAL while it was loaded"})


def _databases(names: Collection[str]) -> list[str]:
    return sorted({d for n in names if (d := TableName.parse(n).database) is not None})


def _ranges(database: AttachedDatabase, relation: Relation) -> dict[str, str]:
    return NumericRanges.of(database).of_table(relation.schema, relation.name)


def _database_key(database: str) -> str:
    return f"database-{database}"


def _captures_key(database: str) -> str:
    return f"captures-{database}"
