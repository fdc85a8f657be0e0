"""The two ways changes come: from the buffers of triggers, and from the WAL. Both end at the snapshot of a cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.catalog.attached import POSITION, AttachedDatabase, Capture, Position
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.cut import Cut
from millstream.refresh.capture.record import buffer_of, columns_of
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.held import TOO_MUCH
from millstream.sources.postgres.keyed import KeyedWindow
from millstream.sources.postgres.positions import WalPosition
from millstream.sources.postgres.relations import read_relations
from millstream.sources.postgres.slot import Slot
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.transition import Captured, Step, check_published, next_step, survey
from millstream.sources.postgres.trims import trimmed_past
from millstream.sources.postgres.wal import next_position, read_wal
from millstream.sources.postgres.windows import Window, changed_buffers, read_window, too_large

WAL = "wal"
"""A detail of a database: its slot, the publication, and how that publishes each captured table."""


class RereadError(Exception):
    """The changes of some tables do not tell what became of them: why, by the ids of their captures."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


@dataclass(frozen=True)
class Reading:
    """What was read.

    Args:
        windows: of the captures that have changes.
        position: where the mirrors are once these are landed.
        is_whole: whether that is the cut's snapshot, or only a piece of the way to it.
        hindrance: why changes should be read by triggers again.
        ahead: captures that are past that position, and were not read.
        unpublished: captures whose changes the slot has not, or not as theirs, until they are published anew.
        unfit: captures that the WAL cannot give.
        mark: what was left in the database as a mark.
    """

    windows: Mapping[str, Window | KeyedWindow]
    position: Position
    is_whole: bool = True
    hindrance: str | None = None
    ahead: Collection[str] = ()
    unpublished: Collection[str] = ()
    unfit: Collection[str] = ()
    mark: str | None = None


def position_of(database: AttachedDatabase, capture: Capture) -> Position:
    """Where a mirror is: with the others, or where it was loaded or left."""
    own = capture.details.get(POSITION)
    if own is not None:
        return dict(own)
    assert database.position is not None, "a loaded mirror has a position"
    return database.position


def read_buffers(cut: Cut, database: AttachedDatabase, captures: Sequence[Capture]) -> Reading:
    """The windows that end at the cut, from the buffers of triggers.

    Raises:
        RereadError: a part of a table was truncated; a value came that no mirror can hold, and may be gone again; the
            buffer was trimmed past the mirror, as happens when a lake is restored from a copy; or it is too much.
    """
    by_start: dict[str, list[Capture]] = {}
    for capture in captures:
        by_start.setdefault(str(position_of(database, capture)["snapshot"]), []).append(capture)
    windows, blind = dict[str, Window](), dict[str, str]()
    for old, group in by_start.items():
        buffers = [buffer_of(c) for c in group]
        changed, behind = changed_buffers(cut.connection, buffers, old, cut.position), set[int]()
        if old != cut.position:
            behind = trimmed_past(cut.connection, buffers, old)
        large = too_large(cut.connection, buffers, changed, old, cut.position)
        for capture in group:
            if capture.oid in behind:
                blind[capture.id] = "its mirror is older than what its buffer has"
            elif capture.oid in large:
                blind[capture.id] = TOO_MUCH
            elif capture.oid in changed:
                buffer, columns = buffer_of(capture), columns_of(capture)
                try:
                    windows[capture.id] = read_window(cut.connection, buffer, columns, old, cut.position)
                except MillstreamError as error:
                    if error.code is not Code.VALUE_UNSUPPORTED:
                        raise
                    blind[capture.id] = error.message
    blind |= {id_: "a part of it was truncated" for id_, window in windows.items() if window.must_reread}
    if blind:
        raise RereadError(blind)
    return Reading(windows, {"snapshot": cut.position})


def read_slot(
    connection: Connection,
    cut: Cut,
    database: AttachedDatabase,
    captures: Sequence[Capture],
    others: Sequence[Capture],
) -> Reading:
    """The windows that end at the cut, or on the way to it, from the database's slot.

    Args:
        connection: not the cut's.
        others: captures that are not read now, and will be.

    Raises:
        RereadError: tables that cannot be read from the WAL, or were altered in between, or are amid a piece.
        MillstreamError: CAPTURE_LOST if the slot or the publication does not have all changes; DATABASE_UNFIT.
    """
    slot, published = slot_in(database), database.details[WAL]["published"]
    found = survey(cut.connection, slot, captured_tables(cut.connection, [*captures, *others]))
    read_now = {c.id for c in captures if c.id in published}
    check_published(slot, published, replace(found, published=_only(found.published, read_now)))
    is_hindered = next_step(database.cdc, "WAL", found) is Step.BACK
    hindrance = "; ".join(str(o) for o in found.obstacles) or "triggers are wanted" if is_hindered else None
    tables = {table.id: table for table in found.tables if table.id in read_now - found.unread}
    if unreadable := {c.id: "it cannot be read from the WAL" for c in captures if c.id not in tables}:
        raise RereadError(unreadable)
    assert database.position is not None
    old = WalPosition.load(database.position)
    new = next_position(connection, slot, old, PgSnapshot.parse(cut.position))
    by_start: dict[WalPosition, list[str]] = {old: []}
    for capture in captures:
        start = position_of(database, capture)
        lsn = start.get("lsn")
        own = WalPosition.load(start) if lsn else WalPosition(PgSnapshot.parse(start["snapshot"]), old.lsn)
        by_start.setdefault(own, []).append(capture.id)
    is_piece, ahead = new.lsn > old.lsn, list[str]()
    if is_piece:  # it ends at a place in the WAL: mirrors elsewhere may have what comes after, or lack what is before
        ahead = [i for begun, ids in by_start.items() if begun != old and begun.lsn >= new.lsn for i in ids]
        amid = [i for begun, ids in by_start.items() if begun != old and begun.lsn < new.lsn for i in ids]
        if amid:
            raise RereadError(dict.fromkeys(amid, "the others catch up in pieces"))
        by_start = {old: by_start[old]}
    windows: dict[str, Window | KeyedWindow] = {}
    reached = new
    for begun, ids in by_start.items():
        batch = read_wal(connection, slot, [tables[i] for i in ids], begun, new)
        if batch.altered:
            raise RereadError(batch.altered)
        windows |= batch.windows
        reached = batch.position if begun == old else reached
    is_whole = str(reached.snapshot) == cut.position
    unfit = {c.id for c in (*captures, *others)} - {table.id for table in found.tables}
    return Reading(windows, reached.dump(), is_whole, hindrance, ahead, found.unread.intersection(published), unfit)


def _only(items: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    return {key: value for key, value in items.items() if key in keys}


def without_published(database: AttachedDatabase, ids: Collection[str]) -> AttachedDatabase:
    """The database with the record that its WAL does not give the changes of some captures."""
    way = database.details[WAL]
    kept = {id_: state for id_, state in way["published"].items() if id_ not in ids}
    return replace(database, details={**database.details, WAL: {**way, "published": kept}})


def slot_in(database: AttachedDatabase) -> Slot:
    """The slot a database is read from."""
    return Slot(database.details[WAL]["slot"], database.details[WAL]["publication"])


def captured_tables(connection: Connection, captures: Sequence[Capture]) -> list[Captured]:
    """Captured tables as they are now."""
    relations = read_relations(connection, [c.oid for c in captures])
    return [Captured(c.id, relations[c.oid], columns_of(c)) for c in captures if c.oid in relations]
