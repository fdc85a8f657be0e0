"""What a slot gives, as the window of each captured table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres import held
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.decode import batch_schema, decode_texts
from millstream.sources.postgres.fitness import WalTable
from millstream.sources.postgres.held import row_bytes
from millstream.sources.postgres.keyed import KeyedChanges, KeyedWindow
from millstream.sources.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Commit,
    Delete,
    Insert,
    Message,
    RelationMessage,
    Row,
    Truncate,
    Update,
    parse,
)
from millstream.sources.postgres.positions import WalPosition
from millstream.sources.postgres.slot import Slot, bounded_end, check_slot, flush_wal, peek
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.windows import Window

CATCH_UP_BYTES = 256 << 20
"""A reader that is further behind takes pieces of `CATCH_UP_CHANGES`, so that its memory does not depend on the lag."""
CATCH_UP_CHANGES = 500_000
_DECODED_AT_ONCE = 50_000

Changes: TypeAlias = "ExactChanges | KeyedChanges"


@dataclass(frozen=True, slots=True)
class WalBatch:
    """The changes between two positions.

    Args:
        windows: of each capture that has changes and whose columns are as they were.
        altered: why the changes of a capture cannot be read: its columns are others from some transaction on, or it
            had a value that no mirror can hold, or there are too many.
        position: the new one, with the place up to which the slot can be advanced once the windows are durable.
        transactions: how many there were.
    """

    windows: Mapping[str, Window | KeyedWindow]
    altered: Mapping[str, str]
    position: WalPosition
    transactions: int


def next_position(
    connection: Connection,
    slot: Slot,
    old: WalPosition,
    snapshot: PgSnapshot,
    catch_up: tuple[int, int] = (CATCH_UP_BYTES, CATCH_UP_CHANGES),
) -> WalPosition:
    """Where the next reading ends: at `snapshot`, or earlier if that is too far at once; all before it is durable.

    The caller may store it before it reads: `read_wal` gives the same for it, then and after a crash.

    Args:
        connection: not the one whose transaction has the snapshot.
        snapshot: of a transaction that is open, in which the tables were looked at.
        catch_up: bytes of WAL, changes.

    Raises:
        MillstreamError: CAPTURE_LOST.
    """
    max_bytes, max_changes = catch_up
    end = flush_wal(connection)
    check_slot(connection, slot, old.lsn)
    if end - old.lsn > max_bytes:
        piece = bounded_end(connection, slot, max_changes, snapshot)
        if piece is not None and piece > old.lsn:
            return WalPosition(old.snapshot, piece)
    return WalPosition(snapshot, old.lsn)


def read_wal(
    connection: Connection, slot: Slot, tables: Sequence[WalTable], old: WalPosition, new: WalPosition
) -> WalBatch:
    """The changes of the transactions that are part of `new` and not of `old`; nothing is consumed.

    Raises:
        MillstreamError: CAPTURE_LOST if the slot or the WAL no longer has all of them.
    """
    check_slot(connection, slot, old.lsn)
    is_by_snapshot = new.snapshot != old.snapshot
    upto = flush_wal(connection) if is_by_snapshot else new.lsn
    keyed: set[str] = set()
    while True:
        reader = WalReader(tables, old, new, keyed)
        try:
            with closing(peek(connection, slot, upto)) as data:  # left half-way, it would block the connection
                reader.read(map(parse, data))
        except _NoWholeRow as e:  # FULL only since: read all again by the key, which the mirror completes
            keyed.add(e.table_id)
            continue
        reached = min(upto, reader.first_unread) if is_by_snapshot else new.lsn
        return WalBatch(
            windows=reader.windows(),
            altered=reader.altered,
            position=WalPosition(new.snapshot, max(reached, old.lsn)),
            transactions=reader.transactions,
        )


class _NoWholeRow(Exception):
    """An old row of a table came without all its columns."""

    def __init__(self, table: WalTable) -> None:
        super().__init__(table.name)
        self.table_id = table.id


@dataclass(frozen=True, slots=True)
class _Route:
    """Where the changes of a table go, and how to pick the captured columns of its rows."""

    changes: Changes
    pick: Callable[[Row], Row]


@dataclass(slots=True)
class WalReader:
    """Takes messages in their order, and keeps what belongs to a window.

    Args:
        keyed: captures to be read by their keys although they should not need it.
        first_unread: where the first transaction commits that is not part of the new position.
    """

    tables: Sequence[WalTable]
    old: WalPosition
    new: WalPosition
    keyed: set[str]
    altered: dict[str, str] = field(default_factory=dict)
    transactions: int = 0
    first_unread: int = 1 << 64
    _changes: dict[str, Changes] = field(default_factory=dict)
    _routes: dict[int, _Route | tuple[str, str]] = field(default_factory=dict)
    _is_wanted: bool = False
    _held: int = 0
    _parent: WalTable | None = None
    _strange: set[str] = field(default_factory=set)

    def read(self, messages: Iterable[Message]) -> None:
        """Take all messages."""
        by_oid = {table.oid: table for table in self.tables}
        for message in messages:
            match message:
                case Insert() | Update() | Delete():
                    if self._is_wanted and (route := self._route(message.oid)) is not None:
                        self._apply(message, route)
                case Begin():
                    self._begin(message)
                case RelationMessage():  # also of transactions that are not wanted
                    self._relate(by_oid, message)
                case Truncate() if self._is_wanted:
                    for oid in message.oids:
                        if (route := self._route(oid)) is not None:
                            self._held -= route.changes.held
                            route.changes.truncate()
                case Commit():
                    self._is_wanted, self._parent = False, None

    def windows(self) -> dict[str, Window | KeyedWindow]:
        """The windows of the captures that have changes."""
        made: dict[str, Window | KeyedWindow] = {}
        for id_, changes in self._changes.items():
            if id_ in self.altered:
                continue
            try:
                window = changes.window()
            except MillstreamError as error:
                self.altered[id_] = _unsupported(error)
                continue
            if window is not None:
                made[id_] = window
        return made

    def _apply(self, change: Insert | Update | Delete, route: _Route) -> None:
        before = route.changes.held
        try:
            _apply(change, route.changes, route.pick)
        except MillstreamError as error:
            reason = _unsupported(error)
            self._give_up(next(id_ for id_, changes in self._changes.items() if changes is route.changes), reason)
            self._held -= before
            return
        self._held += route.changes.held - before
        while self._held > held.MOST_BYTES:
            largest = max(self._changes, key=lambda id_: self._changes[id_].held)
            self._held -= self._changes[largest].held
            self._give_up(largest, held.TOO_MUCH)

    def _give_up(self, capture_id: str, reason: str) -> None:
        """Keep nothing of a capture's changes."""
        self.altered.setdefault(capture_id, reason)
        del self._changes[capture_id]
        self._routes |= {t.oid: (capture_id, reason) for t in self.tables if t.id == capture_id}

    def _begin(self, transaction: Begin) -> None:
        is_new = self.new.has_read(transaction)
        if not is_new:
            self.first_unread = min(self.first_unread, transaction.final_lsn)
        self._is_wanted = is_new and not self.old.has_read(transaction)
        self.transactions += self._is_wanted

    def _route(self, oid: int) -> _Route | None:
        route = self._routes.get(oid)
        if isinstance(route, _Route) or route is None:
            return route
        self.altered.setdefault(*route)
        return None

    def _relate(self, by_oid: Mapping[int, WalTable], message: RelationMessage) -> None:
        """The WAL names a partition right after the parent as whose its changes come, if only to say so.

        One that is no part of it any more has taken its rows away without a trace.
        """
        table, parent = by_oid.get(message.oid), self._parent
        self._parent = table if table is not None and table.leaves else None
        if table is not None and table.id not in self._strange:
            self._describe(table, message)
        elif table is None and parent is not None and message.oid not in parent.leaves:
            self._routes[parent.oid] = (parent.id, "a partition was detached or dropped since")
            self._strange.add(parent.id)

    def _describe(self, table: WalTable, message: RelationMessage) -> None:
        if table.id in self.altered:
            return
        found = {c.name: (place, (c.type_oid, c.type_modifier)) for place, c in enumerate(message.columns)}
        for column in table.columns:
            place = found.get(column.name)
            reason = None
            if place is None:
                reason = f"column {column.name} is not in the WAL"
            elif place[1] != table.types[column.name]:
                reason = f"column {column.name} had another type"
            if reason is not None:
                self._routes[table.oid] = (table.id, reason)
                return
        if table.id not in self._changes:
            is_exact = table.is_full and table.id not in self.keyed
            self._changes[table.id] = ExactChanges(table) if is_exact else KeyedChanges(table)
        places = [found[column.name][0] for column in table.columns]
        self._routes[table.oid] = _Route(self._changes[table.id], _picker(places))


class ExactChanges:
    """Collects the changes of a table whose old rows are in the WAL, as a Z-set."""

    def __init__(self, table: WalTable) -> None:
        self._table = table
        self._rows: list[Row] = []
        self._weights: list[int] = []
        self._decoded: list[pa.Table] = []
        self._truncated = False
        self.held = 0
        """About how many bytes it takes."""

    def insert(self, new: Row) -> None:
        """A row came."""
        self._add(new, 1)

    def update(self, old: Row | None, is_old_whole: bool, new: Row) -> None:
        """A row became another one."""
        if old is None or not is_old_whole:
            raise self._no_whole_row()
        self._add(old, -1)
        if UNCHANGED in new:
            new = tuple(o if n is UNCHANGED else n for o, n in zip(old, new, strict=True))
        self._add(new, 1)

    def delete(self, old: Row) -> None:
        """A row went."""
        self._add(old, -1)

    def delete_by_key(self) -> None:
        """A row went of which only the key is known."""
        raise self._no_whole_row()

    def truncate(self) -> None:
        """All rows went."""
        self._rows, self._weights, self._decoded = [], [], []
        self._truncated, self.held = True, 0

    def window(self) -> Window | None:
        """The Z-set; None if there was no change at all."""
        self._decode()
        if not self._decoded and not self._truncated:
            return None
        empty = batch_schema(self._table.columns).append(pa.field(naming.WEIGHT, pa.int64())).empty_table()
        return Window(pa.concat_tables([empty, *self._decoded]), self._truncated)

    def _add(self, row: Row, weight: int) -> None:
        self.held += row_bytes(row)
        self._rows.append(row)
        self._weights.append(weight)
        if len(self._rows) >= _DECODED_AT_ONCE:
            self._decode()

    def _decode(self) -> None:
        if self._rows:
            table = decode_texts(self._table.columns, list(zip(*self._rows, strict=True)))
            self._decoded.append(table.append_column(naming.WEIGHT, pa.array(self._weights, pa.int64())))
            self._rows, self._weights = [], []

    def _no_whole_row(self) -> Exception:
        if self._table.key:
            return _NoWholeRow(self._table)
        return MillstreamError(
            Code.CAPTURE_LOST,
            f"the WAL has changes of {self._table.name} without the old rows: its REPLICA IDENTITY was changed",
            hint="the table is read anew at the next refresh",
        )


def _unsupported(error: MillstreamError) -> str:
    """Why a window cannot be had, if it is for a value in it; else the error goes on."""
    if error.code is not Code.VALUE_UNSUPPORTED:
        raise error
    return error.message


def _apply(change: Change, changes: Changes, pick: Callable[[Row], Row]) -> None:
    match change:
        case Insert(new=new):
            changes.insert(pick(new))
        case Update(old=old, is_old_whole=is_whole, new=new):
            changes.update(pick(old) if old is not None else None, is_whole, pick(new))
        case Delete(old=old, is_old_whole=is_whole):
            if isinstance(changes, ExactChanges) and not is_whole:
                changes.delete_by_key()
            else:
                changes.delete(pick(old))


def _picker(places: Sequence[int]) -> Callable[[Row], Row]:
    if not places:
        return lambda row: ()
    if len(places) == 1:
        (only,) = places
        return lambda row: (row[only],)
    return itemgetter(*places)
