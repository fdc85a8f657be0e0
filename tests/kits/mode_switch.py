"""A capture that goes from triggers to the WAL and back all the time, as a database's ticks do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from kits.bag_mirror import BagMirror, copied, counts_of
from kits.bags import Bag
from kits.trigger_capture import snapshot_of
from kits.wal_shops import WalShop, publish
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.relations import RelationKind, find_relation
from millstream.sources.postgres.server.table_fingerprints import read_fingerprints
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.triggers.buffer_changes import read_changes, trim
from millstream.sources.postgres.triggers.buffers import install, remove
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo, BufferSettings
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges
from millstream.sources.postgres.wal.mode_switch import (
    CapturedTable,
    OngoingTransition,
    Step,
    Transition,
    begin,
    check_published,
    check_readiness,
    may_return_to_triggers,
    next_step,
    wal_start_position,
)
from millstream.sources.postgres.wal.reader import next_position, read_wal
from millstream.sources.postgres.wal.slot import advance, drop_slot, flush_wal
from millstream.sources.postgres.wal.slot_creation import current_snapshot
from millstream.sources.postgres.wal.wal_position import WalPosition

TRIGGER, TRANSITIONING, WAL = "TRIGGER", "TRANSITIONING", "WAL"


@contextmanager
def suppress_lock_timeout() -> Iterator[None]:
    try:
        yield
    except MillstreamError as e:
        if e.code is not Code.LOCK_TIMEOUT:
            raise


class SwitchingCapture:
    """Follows tables; a `Capture` of the stress tests.

    Args:
        stay: polls in each mode before it moves on; None to stay forever.
        check_every: compare with the tables at every n-th poll, which locks TRUNCATE out for that time.
    """

    def __init__(self, shop: WalShop, names: Sequence[str], stay: int | None = None, check_every: int = 5) -> None:
        self.shop, self.names, self.stay, self.check_every = shop, list(names), stay, check_every
        self.looking, self.own = shop.connect(), shop.connect()
        self.captured = {n: self._captured(n) for n in names}
        self.settings = BufferSettings(patience_seconds=30)
        self.mode = TRIGGER
        self.cdc = "auto"
        self.switches = self.changes = self.polls = self.rereads = self.truncations = self.keyed = 0
        self._stayed = 0
        self.buffers: dict[str, BufferInfo] = {}
        self.mirrors: dict[str, BagMirror] = {}
        self._files: dict[str, str] = {}
        self.snapshot = PgSnapshot(0, 0, frozenset())
        self.position: WalPosition | None = None
        self.published: dict[str, str] = {}
        self.pursuit: OngoingTransition | None = None
        self.installed: PgSnapshot | None = None

    def _captured(self, name: str) -> CapturedTable:
        relation = find_relation(self.own, name, "public")
        return CapturedTable(name, relation, mirror_columns(relation))

    @property
    def bags(self) -> dict[str, Bag]:
        return {name: mirror.bag for name, mirror in self.mirrors.items()}

    def start(self) -> None:
        publish(self.shop, self.own, [(c.relation, [x.name for x in c.columns]) for c in self.captured.values()])
        self._install()
        with self._snapshot(is_locked=True) as (connection, position):
            self.snapshot = PgSnapshot.parse(position)
            for name, item in self.captured.items():
                self.mirrors[name] = BagMirror(item.columns, copied(connection, item.relation, item.columns))
            self._files = self._storage(connection)
        self.settings = replace(self.settings, lock_timeout_ms=100, patience_seconds=0.1)

    def poll(self) -> None:
        self.polls += 1
        self._stayed += 1
        self._before()
        if not self._read(is_locked=self.polls % self.check_every == 0):
            assert self._read(is_locked=True)
        self._after()

    def _before(self) -> None:
        """What is done about the mode before the tick takes its snapshot."""
        is_due = self.stay is not None and self._stayed > self.stay
        if self.mode == TRIGGER and is_due:
            found = check_readiness(self.own, self.shop.slot, list(self.captured.values()))
            assert next_step(self.cdc, self.mode, found) is Step.BEGIN, found
            now = datetime.now(UTC)
            self.pursuit = OngoingTransition(begin(self.own, self.shop.slot, list(self.captured.values()), now))
            self._become(TRANSITIONING)
        if self.mode == TRANSITIONING:
            assert self.pursuit is not None
            if self.pursuit.advance(self.shop.address, self.own, datetime.now(UTC), 60, wait_seconds=0):
                self.pursuit.transition = Transition.load(self.pursuit.transition.dump())  # as the catalog has it
        if self.mode == WAL and is_due and self.installed is None:
            with suppress_lock_timeout():  # else at a later poll
                self._install()
                self.installed = current_snapshot(self.own)
        elif self.mode == WAL and self.installed is None:
            self._remove()

    def _read(self, *, is_locked: bool) -> bool:
        """A tick; whether its snapshot was of use: a table that has to be read again must be locked before."""
        with self._snapshot(is_locked=is_locked) as (connection, position):
            snapshot, storage = PgSnapshot.parse(position), self._storage(connection)
            moved = {name for name in self.names if storage[name] != self._files[name]}
            if moved and not is_locked:
                return False
            self._files = storage
            flush_wal(self.own)  # before anything of the snapshot is kept
            if self.mode == WAL:
                found = self._by_wal(connection, snapshot)
            else:
                found = self._by_triggers(connection, snapshot)
            for name, changes in found.items():
                self.keyed += isinstance(changes, KeyedTableChanges)
                self.changes += changes.rows.num_rows
                self.truncations += changes.truncated
                if name in moved or (isinstance(changes, TableChanges) and changes.must_reread):
                    assert is_locked
                    moved.add(name)
                else:
                    self.mirrors[name].land(changes)
            for name in moved:
                self.rereads += 1
                item = self.captured[name]
                self.mirrors[name] = BagMirror(item.columns, copied(connection, item.relation, item.columns))
            if is_locked:
                for name, item in self.captured.items():
                    assert self.mirrors[name].counts == counts_of(copied(connection, item.relation, item.columns)), (
                        name,
                        self.mode,
                        str(snapshot),
                    )
            if self.mode == TRANSITIONING:
                assert self.pursuit is not None
                captured = list(self.captured.values())
                self.position = wal_start_position(connection, self.pursuit.transition, captured, snapshot)
        self.snapshot = snapshot
        return True

    def _after(self) -> None:
        """What is done once everything has landed."""
        if self.mode == WAL:
            assert self.position is not None
            advance(self.own, self.shop.slot, self.position.lsn)
            if self.installed is not None and may_return_to_triggers(self.position, self.installed):
                drop_slot(self.own, self.shop.slot.name)
                self.installed = self.position = None
                self._become(TRIGGER)
        elif self.mode == TRANSITIONING and self.position is not None:
            assert self.pursuit is not None
            self.published = dict(self.pursuit.transition.published)
            self.pursuit = None
            self._become(WAL)
            self._remove()
        else:
            trim(self.own, list(self.buffers.values()), str(self.snapshot))

    def _by_triggers(self, connection: Connection, snapshot: PgSnapshot) -> dict[str, TableChanges | KeyedTableChanges]:
        return {
            name: read_changes(connection, buffer, self.captured[name].columns, str(self.snapshot), str(snapshot))
            for name, buffer in self.buffers.items()
        }

    def _by_wal(self, connection: Connection, snapshot: PgSnapshot) -> dict[str, TableChanges | KeyedTableChanges]:
        assert self.position is not None
        found = check_readiness(connection, self.shop.slot, list(self.captured.values()))
        check_published(self.shop.slot, self.published, found)
        assert next_step(self.cdc, self.mode, found) is Step.STAY
        new = next_position(self.own, self.shop.slot, self.position, snapshot)
        batch = read_wal(self.own, self.shop.slot, found.tables, self.position, new)
        assert not batch.altered
        self.position = WalPosition.load(batch.position.dump())
        return dict(batch.changes)

    def _snapshot(self, *, is_locked: bool) -> AbstractContextManager[tuple[Connection, str]]:
        relations = [c.relation for c in self.captured.values()] if is_locked else []
        return snapshot_of(self.shop.address, self.looking, relations)

    def _storage(self, connection: Connection) -> dict[str, str]:
        """Of partitioned tables: truncating one partition is not in the WAL."""
        columns = {c.relation.oid: [x.name for x in c.columns] for c in self.captured.values()}
        found = read_fingerprints(connection, columns)
        return {
            name: found[c.relation.oid].storage if c.relation.kind is RelationKind.PARTITIONED else ""
            for name, c in self.captured.items()
        }

    def _install(self) -> None:
        for name, item in self.captured.items():
            self.buffers[name] = install(self.own, item.relation, item.columns, self.settings)

    def _remove(self) -> None:
        """Triggers that are not read any more, as far as no writer is in the way."""
        for name in list(self.buffers):
            with suppress_lock_timeout():
                remove(self.own, self.captured[name].relation.oid, self.settings)
                del self.buffers[name]

    def _become(self, mode: str) -> None:
        self.mode, self._stayed = mode, 0
        self.switches += 1

    def reconnect(self) -> None:
        """After a crash of the server; what was being made for a transition is gone."""
        self.looking, self.own = self.shop.connect(), self.shop.connect()
        if self.pursuit is not None:
            self.pursuit.creation = None

    def close(self) -> None:
        connections: list[Connection] = [self.looking, self.own]
        if self.pursuit is not None:
            self.pursuit.abandon(self.own)
        if not self.own.closed:
            drop_slot(self.own, self.shop.slot.name)
        for connection in connections:
            connection.close()
