"""What capture puts into a source database for its tables, by either way, and takes away again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.catalog import Catalog
from millstream.catalog.attached import HINDERED, LEFT, RESYNC, AttachedDatabase, Capture, CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.record import (
    BUFFER,
    buffer_settings,
    columns_of,
    is_kept,
    is_whole,
    with_buffer,
)
from millstream.refresh.capture.switch import INSTALLED, TRANSITION, with_details
from millstream.refresh.capture.ways import WAL, captured_tables, slot_in, without_published
from millstream.sources.postgres.buffers import install, remove, widen
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.fitness import refuse, wal_tables, within
from millstream.sources.postgres.installed import BufferSettings
from millstream.sources.postgres.publication import drop_publication, ensure_published, nested, unpublish
from millstream.sources.postgres.relations import Relation, read_relations
from millstream.sources.postgres.slot import Slot, slot_of, slot_state
from millstream.sources.postgres.slot_creation import current_snapshot
from millstream.sources.postgres.table_error import TableError
from millstream.sources.postgres.transition import forget

_SHORT_PATIENCE = 0.1


@dataclass
class Source:
    """A database, by a connection in autocommit mode."""

    connection: Connection
    catalog: Catalog
    database: AttachedDatabase

    @property
    def _settings(self) -> BufferSettings:
        return buffer_settings(self.database, self.catalog)

    @property
    def _slot(self) -> Slot:
        """Also where it is only about to be read."""
        return slot_of(self.catalog.lake_id(), self.database.name)

    def capture(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Have a table's changes recorded from now on, in its buffer or in the WAL, whichever is read.

        Any later snapshot sees all that was written before.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, SOURCE_NO_CHANGE_FEED, LOCK_TIMEOUT.
        """
        published = None
        if self.database.mode is CaptureMode.WAL:
            published = self._published(capture, relation)
        # Also where the WAL is read: it waits until nobody is writing who has begun before the table was published.
        captured = with_buffer(capture, install(self.connection, relation, columns_of(capture), self._settings))
        if published is None:
            return captured, self.database
        remove(self.connection, relation.oid, self._settings)
        details = {k: v for k, v in captured.details.items() if k != BUFFER}
        return replace(captured, details=details), self._with_published(published)

    def widen(self, capture: Capture, relation: Relation) -> tuple[Capture, AttachedDatabase]:
        """Have further columns recorded, those the capture has already among them; the mirror is to be compared then.

        That it is to be is recorded: what its triggers have missed before would be forgotten with their old state.
        """
        if BUFFER in capture.details:
            buffer = widen(self.connection, relation, columns_of(capture), self._settings)
            capture = with_buffer(capture, buffer)
            capture = replace(capture, details={**capture.details, RESYNC: "it gets more columns"})
        if self.database.mode is CaptureMode.WAL and (published := self._published(capture, relation)) is not None:
            return capture, self._with_published(published)
        return capture, self.database

    def end(self, capture: Capture, patience_seconds: float | None = None) -> AttachedDatabase:
        """Have a table's changes recorded no more, by either way.

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
        return without_published(self.database, [capture.id]) if WAL in self.database.details else self.database

    def leave_wal(self) -> AttachedDatabase:
        """Drop the slot and the publication that no captured table needs; the next capture begins with triggers.

        Raises:
            MillstreamError: LOCK_TIMEOUT while somebody reads the slot, or is making it.
        """
        if slot_state(self.connection, self._slot.name) is not None:
            forget(self.connection, self._slot)
        else:
            drop_publication(self.connection, self._slot.publication)
        gone = with_details(self.database, {WAL: None, TRANSITION: None, INSTALLED: None, HINDERED: None, LEFT: None})
        return replace(gone, mode=CaptureMode.TRIGGER, position=None)

    def settle(
        self, captures: Sequence[Capture], behind: Sequence[Capture], *, is_hindered: bool
    ) -> tuple[list[Capture], AttachedDatabase]:
        """After a tick by the WAL: without triggers, or, where they are to be read again, with them.

        Both are recorded; what has to wait for writers is left to the next tick.

        Args:
            behind: captures that are not brought forward for now, and need no triggers.

        Raises:
            TableError: a table that the WAL does not give cannot be captured by triggers either.
        """
        settings = replace(self._settings, patience_seconds=_SHORT_PATIENCE)
        missing = [c for c in captures if BUFFER not in c.details]
        done: dict[str, Capture] = {}
        try:
            if is_hindered:
                relations = {t.id: t.relation for t in captured_tables(self.connection, missing)}
                for capture in missing:
                    if capture.id in relations:
                        done[capture.id] = self._triggered(capture, relations[capture.id], settings)
            else:
                for capture in (*captures, *behind):
                    if BUFFER in capture.details:
                        remove(self.connection, capture.oid, settings)
                        kept = {k: v for k, v in capture.details.items() if k != BUFFER}
                        done[capture.id] = replace(capture, details=kept)
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:
                raise
        after = [done.get(c.id, c) for c in (*captures, *behind)]
        database, installed = self.database, self.database.details.get(INSTALLED)
        if is_hindered and installed is None and all(BUFFER in c.details for c in after[: len(captures)]):
            database = with_details(database, {INSTALLED: str(current_snapshot(self.connection))})
        elif not is_hindered and installed is not None:
            database = with_details(database, {INSTALLED: None})
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

        A table of which the WAL does not tell enough is not published: its own UPDATE and DELETE would fail. Nor is one
        that would take the changes of a captured partition for its own, or whose changes another one has.
        """
        _, unfit = wal_tables(self.connection, [(capture.id, relation, columns_of(capture))])
        publication, obstacles = slot_in(self.database).publication, list(unfit)
        captures = self.catalog.captures(self.database.name)
        oids = {relation.oid, *(c.oid for c in captures if c.id != capture.id and is_kept(c) and not is_whole(c))}
        inside = nested(self.connection, publication, sorted(oids))
        relations = read_relations(self.connection, list(inside))
        obstacles += [within(r.qualified, inside[r.oid]) for r in relations.values()]
        try:
            if obstacles:
                raise refuse(obstacles)
            names = [name for name, _, _ in capture.columns]
            found = ensure_published(self.connection, publication, [(relation, names)], self._settings)
        except MillstreamError as error:
            if error.code not in (Code.PRIVILEGE_MISSING, Code.DATABASE_UNFIT) or self.database.cdc == "wal":
                raise
            return None
        return {capture.id: found.fingerprints[relation.oid]}

    def _with_published(self, more: dict[str, str]) -> AttachedDatabase:
        way = self.database.details[WAL]
        return with_details(self.database, {WAL: {**way, "published": {**way["published"], **more}}})
