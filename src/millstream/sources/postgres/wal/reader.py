"""Reads the changes of each captured table from a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.reasons import CaptureReason
from millstream.sources.postgres import memory_limit
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.wal.eligibility import WalTable
from millstream.sources.postgres.wal.exact_changes import ExactCollector, NoWholeRowError
from millstream.sources.postgres.wal.keyed_changes import KeyedCollector, KeyedTableChanges
from millstream.sources.postgres.wal.pgoutput import (
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
from millstream.sources.postgres.wal.slot import Slot, bounded_end, check_slot, flush_wal, peek
from millstream.sources.postgres.wal.wal_position import WalPosition

CATCH_UP_BYTES = 256 << 20
"""A reader that is further behind reads pieces of `CATCH_UP_CHANGES`, so that its memory does not depend on the lag."""
CATCH_UP_CHANGES = 500_000

Collector: TypeAlias = "ExactCollector | KeyedCollector"


@dataclass(frozen=True, slots=True)
class WalBatch:
    """The changes between two positions.

    Args:
        changes: those of each capture that has any and whose columns are unchanged.
        altered: why the changes of a capture cannot be read: its columns differ from some transaction on, or it had a
            value that no mirror can hold, or there are too many.
        position: the new one, with the place up to which the slot can be advanced once the changes are durable.
        transactions: how many there were.
    """

    changes: Mapping[str, TableChanges | KeyedTableChanges]
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
    """Where the next read ends: at `snapshot`, or earlier if that is too much at once; all before it is durable.

    The caller may store it before it reads: `read_wal` returns the same for it, even after a crash.

    Args:
        connection: not the one whose transaction has the snapshot.
        snapshot: of an open transaction, in which the tables were checked.
        catch_up: the bytes of WAL above which pieces are read, and the changes in a piece.

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
            with closing(peek(connection, slot, upto)) as data:  # left unfinished, it would block the connection
                reader.read(map(parse, data))
        except NoWholeRowError as e:  # it was not FULL yet: read all again by key, and complete it from the mirror
            keyed.add(e.table_id)
            continue
        reached = min(upto, reader.first_unread) if is_by_snapshot else new.lsn
        return WalBatch(
            changes=reader.changes(),
            altered=reader.altered,
            position=WalPosition(new.snapshot, max(reached, old.lsn)),
            transactions=reader.transactions,
        )


@dataclass(frozen=True, slots=True)
class _Route:
    """Where the changes of a table go, and how to pick the captured columns of its rows."""

    collector: Collector
    pick: Callable[[Row], Row]


@dataclass(slots=True)
class WalReader:
    """Takes messages in their order, and keeps the changes between two positions.

    Args:
        keyed: captures to read by their keys although their tables are FULL now.
        first_unread: where the first transaction commits that is not part of the new position.
    """

    tables: Sequence[WalTable]
    old: WalPosition
    new: WalPosition
    keyed: set[str]
    altered: dict[str, str] = field(default_factory=dict)
    transactions: int = 0
    first_unread: int = 1 << 64
    _collectors: dict[str, Collector] = field(default_factory=dict)
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
                            self._held -= route.collector.held
                            route.collector.truncate()
                case Commit():
                    self._is_wanted, self._parent = False, None

    def changes(self) -> dict[str, TableChanges | KeyedTableChanges]:
        """The changes of the captures that have any."""
        made: dict[str, TableChanges | KeyedTableChanges] = {}
        for id_, collector in self._collectors.items():
            if id_ in self.altered:
                continue
            try:
                changes = collector.collected()
            except MillstreamError as error:
                self.altered[id_] = _unsupported(error)
                continue
            if changes is not None:
                made[id_] = changes
        return made

    def _apply(self, change: Insert | Update | Delete, route: _Route) -> None:
        before = route.collector.held
        try:
            _apply(change, route.collector, route.pick)
        except MillstreamError as error:
            reason = _unsupported(error)
            self._give_up(next(id_ for id_, kept in self._collectors.items() if kept is route.collector), reason)
            self._held -= before
            return
        self._held += route.collector.held - before
        while self._held > memory_limit.MAX_BYTES:
            largest = max(self._collectors, key=lambda id_: self._collectors[id_].held)
            self._held -= self._collectors[largest].held
            self._give_up(largest, CaptureReason.TOO_MUCH)

    def _give_up(self, capture_id: str, reason: str) -> None:
        """Discard all changes of a capture."""
        self.altered.setdefault(capture_id, reason)
        del self._collectors[capture_id]
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
        """The WAL names a partition right after the parent that its changes are reported as.

        A partition that no longer belongs to the parent has taken its rows with it, which the WAL does not show.
        """
        table, parent = by_oid.get(message.oid), self._parent
        self._parent = table if table is not None and table.leaves else None
        if table is not None and table.id not in self._strange:
            self._describe(table, message)
        elif table is None and parent is not None and message.oid not in parent.leaves:
            self._routes[parent.oid] = (parent.id, CaptureReason.PARTITION_GONE)
            self._strange.add(parent.id)

    def _describe(self, table: WalTable, message: RelationMessage) -> None:
        if table.id in self.altered:
            return
        found = {c.name: (place, (c.type_oid, c.type_modifier)) for place, c in enumerate(message.columns)}
        for column in table.columns:
            place = found.get(column.name)
            reason = None
            if place is None:
                reason = CaptureReason.WAL_LACKS_COLUMN.format(column=column.name)
            elif place[1] != table.types[column.name]:
                reason = CaptureReason.WAL_OTHER_TYPE.format(column=column.name)
            if reason is not None:
                self._routes[table.oid] = (table.id, reason)
                return
        if table.id not in self._collectors:
            is_exact = table.is_full and table.id not in self.keyed
            self._collectors[table.id] = ExactCollector(table) if is_exact else KeyedCollector(table)
        places = [found[column.name][0] for column in table.columns]
        self._routes[table.oid] = _Route(self._collectors[table.id], _picker(places))


def _unsupported(error: MillstreamError) -> str:
    """Why changes cannot be decoded, if a value is the reason; any other error is raised again."""
    if error.code is not Code.VALUE_UNSUPPORTED:
        raise error
    return error.message


def _apply(change: Change, collector: Collector, pick: Callable[[Row], Row]) -> None:
    match change:
        case Insert(new=new):
            collector.insert(pick(new))
        case Update(old=old, is_old_whole=is_whole, new=new):
            collector.update(pick(old) if old is not None else None, is_whole, pick(new))
        case Delete(old=old, is_old_whole=is_whole):
            if isinstance(collector, ExactCollector) and not is_whole:
                collector.delete_by_key()
            else:
                collector.delete(pick(old))


def _picker(places: Sequence[int]) -> Callable[[Row], Row]:
    if not places:
        return lambda row: ()
    if len(places) == 1:
        (only,) = places
        return lambda row: (row[only],)
    return itemgetter(*places)
