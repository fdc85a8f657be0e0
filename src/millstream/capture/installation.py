"""What capture installs in a source database for its tables, for triggers or the WAL, and removes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millstream.capture.change_buffers import buffer_settings, with_buffer, without_buffer
from millstream.capture.change_readers import captured_tables, slot_in, wal_of, without_published
from millstream.capture.column_selection import columns_of
from millstream.capture.database_access import DatabaseAccess
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.settings import Settings
from millstream.sources.postgres.server.relations import Relation, read_relations
from millstream.sources.postgres.server.table_error import TableError
from millstream.sources.postgres.triggers.buffers import install, remove, widen
from millstream.sources.postgres.triggers.ddl_guard import guard
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.wal.eligibility import ineligible_error, nested_obstacle, wal_tables
from millstream.sources.postgres.wal.mode_switch import drop_slot_and_publication
from millstream.sources.postgres.wal.publication import drop_publication, ensure_published, nested, unpublish
from millstream.sources.postgres.wal.slot import Slot, slot_of, slot_state
from millstream.sources.postgres.wal.slot_creation import current_snapshot

_SHORT_PATIENCE = 0.1


@dataclass
class Installation:
    """What is installed in a database, by a connection in autocommit mode."""

    connection: Connection
    catalog: Catalog
    database: AttachedDatabase

    @property
    def _settings(self) -> BufferSettings:
        return buffer_settings(self.database, self.catalog)

    @property
    def _slot(self) -> Slot:
        """The slot that is read, or is about to be."""
        return slot_of(self.catalog.lake_id(), self.database.name)

    def capture(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Record a table's changes from now on, in its buffer or in the WAL, whichever is read.

        Any later snapshot sees all that was written before.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, SOURCE_NO_CHANGE_FEED, LOCK_TIMEOUT.
        """
        published = None
        if self.database.mode is CaptureMode.WAL:
            published = self._published(capture, relation)
        # Also where the WAL is read: it waits for the writers that began before the table was published.
        captured = with_buffer(capture, install(self.connection, relation, columns_of(capture), self._settings))
        if published is None:
            return captured, self.database
        remove(self.connection, relation.oid, self._settings)
        return without_buffer(captured), self._with_published(published)

    def widen(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Record further columns too, those the capture has already among them; the mirror is to be compared then.

        That is recorded: the old fingerprint of its triggers, which shows whether they missed changes, is replaced.
        """
        if capture.state.buffer is not None:
            buffer = widen(self.connection, relation, columns_of(capture), self._settings)
            capture = with_buffer(capture, buffer)
            capture = replace(capture, state=replace(capture.state, resync="it gets more columns"))
        if self.database.mode is CaptureMode.WAL and (published := self._published(capture, relation)) is not None:
            return capture, self._with_published(published)
        return capture, self.database

    def end(self, capture: Capture, patience_seconds: float | None = None) -> AttachedDatabase:
        """Record a table's changes no longer, in neither place.

        Raises:
            MillstreamError: LOCK_TIMEOUT.
        """
        settings = self._settings
        if patience_seconds is not None:
            settings = replace(settings, patience_seconds=patience_seconds)
        remove(self.connection, capture.oid, settings)
        if self.database.mode is CaptureMode.TRIGGER:
            return self.database
        unpublish(self.connection, self._slot.publication, capture.oid, settings)
        return without_published(self.database, [capture.id]) if self.database.state.wal is not None else self.database

    def leave_wal(self) -> AttachedDatabase:
        """Drop the slot and the publication that no captured table needs; the next capture begins with triggers.

        Raises:
            MillstreamError: LOCK_TIMEOUT while somebody reads the slot, or is making it.
        """
        if slot_state(self.connection, self._slot.name) is not None:
            drop_slot_and_publication(self.connection, self._slot)
        else:
            drop_publication(self.connection, self._slot.publication)
        state = replace(
            self.database.state, wal=None, transition=None, triggers_installed=None, hindered=None, unread_slot=None
        )
        return replace(self.database, mode=CaptureMode.TRIGGER, position=None, state=state)

    def settle(
        self, captures: Sequence[Capture], quarantined: Sequence[Capture], *, is_hindered: bool
    ) -> tuple[list[Capture], AttachedDatabase]:
        """After a tick by the WAL: remove triggers, or, where they are to capture again, install them.

        Both are recorded; what would have to wait for writers is left to the next tick.

        Args:
            quarantined: captures that are not brought forward for now, and need no triggers.

        Raises:
            TableError: a table that the WAL does not give cannot be captured by triggers either.
        """
        settings = replace(self._settings, patience_seconds=_SHORT_PATIENCE)
        missing = [c for c in captures if c.state.buffer is None]
        done: dict[str, Capture] = {}
        try:
            if is_hindered:
                relations = {t.id: t.relation for t in captured_tables(self.connection, missing)}
                for capture in missing:
                    if capture.id in relations:
                        done[capture.id] = self._triggered(capture, relations[capture.id], settings)
            else:
                for capture in (*captures, *quarantined):
                    if capture.state.buffer is not None:
                        remove(self.connection, capture.oid, settings)
                        done[capture.id] = without_buffer(capture)
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:
                raise
        after = [done.get(c.id, c) for c in (*captures, *quarantined)]
        state = self.database.state
        is_triggered = all(c.state.buffer is not None for c in after[: len(captures)])
        if is_hindered and state.triggers_installed is None and is_triggered:
            state = replace(state, triggers_installed=str(current_snapshot(self.connection)))
        elif not is_hindered:
            state = replace(state, triggers_installed=None)
        database = replace(self.database, state=state)
        if done or database != self.database:
            self.catalog.put_database(database, captures=after)
        return after, database

    def _triggered(self, capture: Capture, relation: Relation, settings: BufferSettings) -> Capture:
        try:
            return with_buffer(capture, install(self.connection, relation, columns_of(capture), settings))
        except MillstreamError as error:
            if error.code in (Code.LOCK_TIMEOUT, Code.DATABASE_UNREACHABLE):
                raise
            raise TableError.about(relation.qualified, error) from error

    def _published(self, capture: Capture, relation: Relation) -> dict[str, str] | None:
        """How the publication publishes a table, if it can be made to; else a later tick goes back to triggers.

        A table is not published if the WAL does not identify its rows: its own UPDATE and DELETE would fail. Nor is one
        as whose changes those of a captured partition would be published, or whose changes another one has.
        """
        _, unfit = wal_tables(self.connection, [(capture.id, relation, columns_of(capture))])
        publication, obstacles = slot_in(self.database).publication, list(unfit)
        captures = self.catalog.captures(self.database.name)
        oids = {relation.oid, *(c.oid for c in captures if c.id != capture.id and c.is_kept and not c.is_whole)}
        inside = nested(self.connection, publication, sorted(oids))
        relations = read_relations(self.connection, list(inside))
        obstacles += [nested_obstacle(r.qualified, inside[r.oid]) for r in relations.values()]
        try:
            if obstacles:
                raise ineligible_error(obstacles)
            names = [name for name, _, _ in capture.columns]
            found = ensure_published(self.connection, publication, [(relation, names)], self._settings)
        except MillstreamError as error:
            if error.code not in (Code.PRIVILEGE_MISSING, Code.DATABASE_UNFIT) or self.database.cdc == "wal":
                raise
            return None
        return {capture.id: found.fingerprints[relation.oid]}

    def _with_published(self, more: dict[str, str]) -> AttachedDatabase:
        wal = wal_of(self.database)
        published = replace(wal, published={**wal.published, **more})
        return replace(self.database, state=replace(self.database.state, wal=published))


def guard_captured_tables(
    access: DatabaseAccess, settings: Settings, name: str, progress: Callable[[str], None]
) -> None:
    """Make the database refuse DDL that changes captured columns if that is wanted, and only then."""
    database, is_wanted = access.get(name), settings.block_source_ddl
    if not is_wanted and not database.state.is_guarded:
        return
    kept = [c for c in access.catalog.captures(name) if c.is_kept] if is_wanted else []
    with access.own_connection(database) as connection:
        columns = {c.oid: [n for n, _, _ in c.columns] for c in kept}
        can = guard(connection, database.state.buffer_schema, columns)
    if not can:
        progress(f"{name} cannot refuse DDL (block_source_ddl): its role may not create event triggers")
    is_guarded = bool(can and kept)
    if database.state.is_guarded != is_guarded:
        with access.ticking(name):
            now = access.get(name)
            access.catalog.put_database(replace(now, state=replace(now.state, is_guarded=is_guarded)))
