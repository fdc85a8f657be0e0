"""A database that is captured by its WAL into mirrors in memory, by a role that may replicate and owns nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg

from kits.bag_mirror import BagMirror, Counts, copied, counts_of
from kits.shops import OWNER, Shop, made
from millstream.errors import MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.sources.postgres.server.relations import Relation, find_relation, read_relations
from millstream.sources.postgres.values.types import MirrorColumn, mirror_columns
from millstream.sources.postgres.wal.eligibility import WalTable, wal_tables
from millstream.sources.postgres.wal.publication import ensure_published
from millstream.sources.postgres.wal.reader import WalBatch, next_position, read_wal
from millstream.sources.postgres.wal.slot import Slot, advance, slot_of, slot_state
from millstream.sources.postgres.wal.slot_creation import create_slot, current_snapshot
from millstream.sources.postgres.wal.wal_position import WalPosition
from millstream.testing.postgres_server import Server

REPLICATOR = "millstream_wal"


@dataclass(frozen=True)
class WalShop(Shop):
    """A database whose millstream may replicate."""

    @property
    def address(self) -> Address:
        return Address.parse(self.server.url(self.name, REPLICATOR))

    @property
    def server_version(self) -> int:
        with self.connect() as connection:
            return connection.info.server_version // 10_000

    @property
    def slot(self) -> Slot:
        return slot_of("lake", self.name)


def new_wal_shop(server: Server) -> WalShop:
    """An empty database; the role `millstream_wal` may read what the owner makes, and replicate."""
    name = server.new_database(OWNER, REPLICATOR)
    with server.superuser(name) as superuser:
        superuser.execute(f"ALTER ROLE {REPLICATOR} REPLICATION")
    with psycopg.connect(server.url(name, OWNER), autocommit=True) as owner:
        owner.execute(f'GRANT CREATE ON DATABASE "{name}" TO {REPLICATOR}')
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {REPLICATOR}")
        owner.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, TRIGGER ON TABLES TO {REPLICATOR}")
    made.append((server, name))
    return WalShop(server, name)


def new_owned_wal_shop(server: Server) -> WalShop:
    """The same; the role that captures may own tables, so that it may publish them; it is no superuser."""
    shop = new_wal_shop(server)
    with shop.owner() as owner:
        owner.execute(f"GRANT CREATE ON SCHEMA public TO {REPLICATOR}")
    return shop


def publish(shop: WalShop, connection: Connection, wanted: list[tuple[Relation, list[str]]]) -> None:
    """As a user does: the error has the statements for the owner, who runs them."""
    try:
        ensure_published(connection, shop.slot.publication, wanted)
    except MillstreamError as e:
        with shop.owner() as owner:
            owner.execute((e.hint or "").removeprefix("ask the owner to run: ").encode())
        ensure_published(connection, shop.slot.publication, wanted)


@dataclass
class WalCapture:
    """Some tables of a database, captured by its WAL."""

    shop: WalShop
    captured: dict[str, tuple[Relation, tuple[MirrorColumn, ...]]]
    mirrors: dict[str, BagMirror]
    position: WalPosition
    connection: Connection
    looking: Connection
    batches: list[WalBatch] = field(default_factory=list)

    @classmethod
    def begin(cls, shop: WalShop, *names: str, columns: dict[str, list[str]] | None = None) -> WalCapture:
        connection, looking = connect(shop.address), connect(shop.address)
        captured = {}
        for name in names:
            relation = find_relation(connection, name, "public")
            captured[name] = (relation, mirror_columns(relation, (columns or {}).get(name)))
        publish(shop, connection, [(r, [c.name for c in cs]) for r, cs in captured.values()])
        create_slot(shop.address, shop.slot.name, 30)
        state = slot_state(connection, shop.slot.name)
        assert state is not None
        assert state.confirmed_flush_lsn is not None
        with looking.transaction():
            looking.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            snapshot = current_snapshot(looking)
            mirrors = {name: BagMirror(cs, copied(looking, r, cs)) for name, (r, cs) in captured.items()}
        position = WalPosition(snapshot, state.confirmed_flush_lsn)
        return cls(shop, captured, mirrors, position, connection, looking)

    def tables(self, connection: Connection) -> tuple[WalTable, ...]:
        now = read_relations(connection, [r.oid for r, _ in self.captured.values()])
        tables, hindrances = wal_tables(
            connection, [(name, now[r.oid], columns) for name, (r, columns) in self.captured.items()]
        )
        assert not hindrances, [str(o) for o in hindrances]
        return tables

    def cut(self) -> tuple[WalPosition, dict[str, Counts], tuple[WalTable, ...]]:
        """The next position, what the tables hold at it, and what they are."""
        with self.looking.transaction():
            self.looking.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            new = next_position(self.connection, self.shop.slot, self.position, current_snapshot(self.looking))
            bags = {name: counts_of(copied(self.looking, r, cs)) for name, (r, cs) in self.captured.items()}
            return new, bags, self.tables(self.looking)

    def tick(self) -> WalBatch:
        """Read all there is, and see that the mirrors equal the tables as of that moment."""
        new, bags, tables = self.cut()
        batch = read_wal(self.connection, self.shop.slot, tables, self.position, new)
        assert not batch.altered, batch.altered
        self.land(batch)
        assert self.bags == bags
        return batch

    def land(self, batch: WalBatch) -> None:
        for name, changes in batch.changes.items():
            self.mirrors[name].land(changes)
        self.position = WalPosition.load(batch.position.dump())
        self.batches.append(batch)
        advance(self.connection, self.shop.slot, self.position.lsn)

    @property
    def bags(self) -> dict[str, Counts]:
        return {name: mirror.counts for name, mirror in self.mirrors.items()}

    def close(self) -> None:
        self.connection.close()
        self.looking.close()
