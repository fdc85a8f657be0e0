"""Installs capture of a table in a source database, by triggers or from the WAL, and removes it."""

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
from millstream.sources.postgres.wal.eligibility import ineligible_error, nested_hindrance, wal_tables
from millstream.sources.postgres.wal.mode_switch import drop_slot_and_publication
from millstream.sources.postgres.wal.publication import drop_publication, ensure_published, nested, unpublish
from millstream.sources.postgres.wal.slot import Slot, slot_of, slot_state
from millstream.sources.postgres.wal.slot_creation import current_snapshot

_SHORT_PATIENCE = 0.1


@dataclass
class Installation:
    """Installs and removes capture in a database, over a connection in autocommit mode."""

    connection: Connection
    catalog: Catalog
    database: AttachedDatabase

    @property
    def _settings(self) -> BufferSettings:
        return buffer_settings(self.database, self.catalog)

    @property
    def _slot(self) -> Slot:
        """The slot of the database, whether it is read already or not."""
        return slot_of(self.catalog.lake_id(), self.database.name)

    def capture(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Record a table's changes from now on, in its buffer or in the WAL, depending on the capture mode.

        Any later snapshot sees everything that was written before recording began.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, SOURCE_NO_CHANGE_FEED, LOCK_TIMEOUT.
        """
        published = None
        if self.database.mode is CaptureMode.WAL:
            published = self._published(capture, relation)
        # In WAL mode too: this waits for writers that began before the table was published.
        captured = with_buffer(capture, install(self.connection, relation, columns_of(capture), self._settings))
        if published is None:
            return captured, self.database
        remove(self.connection, relation.oid, self._settings)
        return without_buffer(captured), self._with_published(published)

    def widen(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Record all columns of a capture to which columns were added; the mirror has to be compared afterwards.

        The comparison is recorded: replacing the old fingerprint of the triggers hides whether they missed changes.
        """
        if capture.state.buffer is not None:
            buffer = widen(self.connection, relation, columns_of(capture), self._settings)
            capture = with_buffer(capture, buffer)
            capture = replace(capture, state=replace(capture.state, resync="columns are being added"))
        if self.database.mode is CaptureMode.WAL and (published := self._published(capture, relation)) is not None:
            return capture, self._with_published(published)
        return capture, self.database

    def end(self, capture: Capture, patience_seconds: float | None = None) -> AttachedDatabase:
        """Stop recording a table's changes, by triggers and in the WAL.

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
            MillstreamError: LOCK_TIMEOUT while another process reads or creates the slot.
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
        """After a tick that read the WAL: remove triggers, or install them if triggers are to capture again.

        Both are recorded; what would have to wait for writers is left to the next tick.

        Args:
            quarantined: quarantined captures, which need no triggers.

        Raises:
            TableError: a table that the WAL does not provide cannot be captured by triggers either.
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
        """Publish a table if that is possible; returns None otherwise, and a later tick switches back to triggers.

        A table is not published if the WAL does not identify its rows: its UPDATE and DELETE would fail. Nor are a
        partition and its parent both published: the WAL would report the partition's changes as the parent's.

        Returns:
            The fingerprint of how the table is published, by the id of its capture.
        """
        _, unfit = wal_tables(self.connection, [(capture.id, relation, columns_of(capture))])
        publication, hindrances = slot_in(self.database).publication, list(unfit)
        captures = self.catalog.captures(self.database.name)
        oids = {relation.oid, *(c.oid for c in captures if c.id != capture.id and c.is_kept and not c.is_whole)}
        inside = nested(self.connection, publication, sorted(oids))
        relations = read_relations(self.connection, list(inside))
        hindrances += [nested_hindrance(r.qualified, inside[r.oid]) for r in relations.values()]
        try:
            if hindrances:
                raise ineligible_error(hindrances)
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
    """Make the database refuse DDL that changes captured columns if `block_source_ddl` is set; otherwise allow it."""
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
