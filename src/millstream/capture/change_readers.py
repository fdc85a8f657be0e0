"""Reads changes up to a snapshot of the source, from the buffers of triggers or from the WAL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.capture.change_buffers import buffer_of
from millstream.capture.column_selection import columns_of
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.capture_state import Position, WalState
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.reasons import CaptureReason
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.relations import read_relations
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.triggers.buffer_changes import changed_buffers, read_changes, too_large
from millstream.sources.postgres.triggers.trims import trimmed_past
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges
from millstream.sources.postgres.wal.mode_switch import CapturedTable, Step, check_published, check_readiness, next_step
from millstream.sources.postgres.wal.reader import next_position, read_wal
from millstream.sources.postgres.wal.slot import Slot
from millstream.sources.postgres.wal.wal_position import WalPosition


class RereadError(Exception):
    """The recorded changes of some tables are not enough; `reasons` says why, by the ids of their captures."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


@dataclass(frozen=True)
class Reading:
    """What was read.

    Args:
        changes: the changes of each capture that has any, by its id.
        position: the position of the mirrors once these changes are landed.
        is_complete: whether that position is the snapshot, or only part of the way to it.
        hindrance: why triggers should capture the database again.
        ahead: captures that are past that position and were not read.
        unpublished: captures whose changes the slot lacks, or records under another table, until they are published
            again.
        unfit: captures whose changes the WAL cannot provide.
        mark: the mark that was written into the database, if one was.
    """

    changes: Mapping[str, TableChanges | KeyedTableChanges]
    position: Position
    is_complete: bool = True
    hindrance: str | None = None
    ahead: Collection[str] = ()
    unpublished: Collection[str] = ()
    unfit: Collection[str] = ()
    mark: str | None = None


def _start(database: AttachedDatabase, capture: Capture) -> Position:
    """The position after which the changes of a capture are read."""
    position = database.mirror_position(capture)
    assert position is not None, "a loaded mirror has a position"
    return position


def read_buffers(snapshot: SourceSnapshot, database: AttachedDatabase, captures: Sequence[Capture]) -> Reading:
    """Read the changes up to the snapshot from the buffers of triggers.

    Raises:
        RereadError: part of a table was truncated; a change has a value that no mirror can hold, which may be gone
            by now; the buffer was trimmed past the mirror, as happens when a lake is restored from a copy; there are
            too many changes.
    """
    by_start: dict[str, list[Capture]] = {}
    for capture in captures:
        by_start.setdefault(str(_start(database, capture)["snapshot"]), []).append(capture)
    changes, unclear = dict[str, TableChanges](), dict[str, str]()
    for old, group in by_start.items():
        buffers = [buffer_of(c) for c in group]
        changed, trimmed = changed_buffers(snapshot.connection, buffers, old, snapshot.position), set[int]()
        if old != snapshot.position:
            trimmed = trimmed_past(snapshot.connection, buffers, old)
        large = too_large(snapshot.connection, buffers, changed, old, snapshot.position)
        for capture in group:
            if capture.oid in trimmed:
                unclear[capture.id] = CaptureReason.BUFFER_TRIMMED
            elif capture.oid in large:
                unclear[capture.id] = CaptureReason.TOO_MUCH
            elif capture.oid in changed:
                buffer, columns = buffer_of(capture), columns_of(capture)
                try:
                    changes[capture.id] = read_changes(snapshot.connection, buffer, columns, old, snapshot.position)
                except MillstreamError as error:
                    if error.code is not Code.VALUE_UNSUPPORTED:
                        raise
                    unclear[capture.id] = error.message
    unclear |= {id_: CaptureReason.PART_TRUNCATED for id_, found in changes.items() if found.must_reread}
    if unclear:
        raise RereadError(unclear)
    return Reading(changes, {"snapshot": snapshot.position})


def read_slot(
    connection: Connection,
    snapshot: SourceSnapshot,
    database: AttachedDatabase,
    captures: Sequence[Capture],
    others: Sequence[Capture],
) -> Reading:
    """Read the changes from the database's slot, up to the snapshot or part of the way to it.

    Args:
        connection: not the connection of the snapshot.
        others: captures that a later attempt reads.

    Raises:
        RereadError: tables that the WAL does not provide, that were altered in between, or whose mirror is at a
            position inside the part that was read.
        MillstreamError: CAPTURE_LOST if the slot or the publication does not have all changes; DATABASE_UNFIT.
    """
    slot, published = slot_in(database), wal_of(database).published
    found = check_readiness(snapshot.connection, slot, captured_tables(snapshot.connection, [*captures, *others]))
    read_now = {c.id for c in captures if c.id in published}
    check_published(slot, published, replace(found, published=_only(found.published, read_now)))
    is_hindered = next_step(database.cdc, "WAL", found) is Step.BACK
    hindrance = "; ".join(str(o) for o in found.hindrances) or "triggers were requested" if is_hindered else None
    tables = {table.id: table for table in found.tables if table.id in read_now - found.unread}
    if unreadable := {c.id: CaptureReason.NOT_IN_WAL for c in captures if c.id not in tables}:
        raise RereadError(unreadable)
    assert database.position is not None
    old = WalPosition.load(database.position)
    new = next_position(connection, slot, old, PgSnapshot.parse(snapshot.position))
    by_start: dict[WalPosition, list[str]] = {old: []}
    for capture in captures:
        start = _start(database, capture)
        lsn = start.get("lsn")
        own = WalPosition.load(start) if lsn else WalPosition(PgSnapshot.parse(start["snapshot"]), old.lsn)
        by_start.setdefault(own, []).append(capture.id)
    is_piece, ahead = new.lsn > old.lsn, list[str]()
    if is_piece:  # it ends inside the WAL: mirrors at other positions may be past its end, or short of its start
        ahead = [i for begun, ids in by_start.items() if begun != old and begun.lsn >= new.lsn for i in ids]
        within = [i for begun, ids in by_start.items() if begun != old and begun.lsn < new.lsn for i in ids]
        if within:
            raise RereadError(dict.fromkeys(within, CaptureReason.CAUGHT_BETWEEN))
        by_start = {old: by_start[old]}
    changes: dict[str, TableChanges | KeyedTableChanges] = {}
    reached = new
    for begun, ids in by_start.items():
        batch = read_wal(connection, slot, [tables[i] for i in ids], begun, new)
        if batch.altered:
            raise RereadError(batch.altered)
        changes |= batch.changes
        reached = batch.position if begun == old else reached
    is_complete = str(reached.snapshot) == snapshot.position
    unfit = {c.id for c in (*captures, *others)} - {table.id for table in found.tables}
    return Reading(changes, reached.dump(), is_complete, hindrance, ahead, found.unread.intersection(published), unfit)


def _only(items: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    return {key: value for key, value in items.items() if key in keys}


def without_published(database: AttachedDatabase, ids: Collection[str]) -> AttachedDatabase:
    """The database with the record that its WAL does not provide the changes of some captures."""
    wal = wal_of(database)
    kept = {id_: state for id_, state in wal.published.items() if id_ not in ids}
    return replace(database, state=replace(database.state, wal=replace(wal, published=kept)))


def wal_of(database: AttachedDatabase) -> WalState:
    """The WAL state of a database that is captured from its WAL."""
    assert database.state.wal is not None, "it is captured from its WAL"
    return database.state.wal


def slot_in(database: AttachedDatabase) -> Slot:
    """The slot that a database's changes are read from."""
    return Slot(wal_of(database).slot, wal_of(database).publication)


def captured_tables(connection: Connection, captures: Sequence[Capture]) -> list[CapturedTable]:
    """The captured tables as they are now, without those that are gone."""
    relations = read_relations(connection, [c.oid for c in captures])
    return [CapturedTable(c.id, relations[c.oid], columns_of(c)) for c in captures if c.oid in relations]
