"""Captures as one might write them at first, which lose changes: the stress test has to find them out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg
import pyarrow as pa
from psycopg import sql

from kits.bags import apply
from kits.shops import MILLSTREAM, Shop
from kits.trigger_capture import TriggerCapture
from millstream.naming import WEIGHT
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.sources.postgres.values.decode import decode_texts
from millstream.sources.postgres.values.types import MirrorColumn
from millstream.testing.postgres_server import Server

_WEIGHT = MirrorColumn(WEIGHT, "smallint", "bigint")
_NEW = "pg_visible_in_snapshot(__ms_xid, {}::pg_snapshot)"


class VisibilityCapture(TriggerCapture):
    """The right rule, by the means of the naive ones: what fails in them is the rule."""

    def __init__(self, shop: Shop, names: Sequence[str]) -> None:
        super().__init__(shop, names)
        self.reader = self.connection

    def poll(self) -> None:
        with self.reader.transaction():
            self.reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            position = scalar(self.reader, "SELECT pg_current_snapshot()::text")
            self.apply_all(sql.SQL(f"{_NEW} AND NOT {_NEW}").format(position, self.position))
        self.position = position

    def apply_all(self, rule: sql.Composable) -> None:
        """Apply the rows that are new by some rule."""
        for name, buffer in self.buffers.items():
            columns = [*self.columns[name], _WEIGHT]
            query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
                sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(c.name)) for c in columns),
                buffer.table,
                rule,
            )
            rows = self.reader.execute(query).fetchall()
            self.changes += len(rows)
            texts = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
            if texts:
                apply(self.bags[name], decode_texts(columns, texts))


class LsnCapture(VisibilityCapture):
    """Stamps rows with the WAL's position when they are written, and takes those after the last position polled."""

    def start(self) -> None:
        super().start()
        for buffer in self.buffers.values():
            self.connection.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN lsn pg_lsn DEFAULT pg_current_wal_insert_lsn()").format(buffer.table)
            )
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self.position = scalar(self.connection, "SELECT pg_current_wal_insert_lsn()::text")
            for name in self.buffers:
                self.bags[name] = self.table(name)

    def poll(self) -> None:
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            position = scalar(self.connection, "SELECT pg_current_wal_insert_lsn()::text")
            self.apply_all(sql.SQL("lsn > {}::pg_lsn AND lsn <= {}::pg_lsn").format(self.position, position))
        self.position = position


class ReadCommittedCapture(VisibilityCapture):
    """Reads the rows, and takes the snapshot that the next poll begins at by a later statement."""

    def poll(self) -> None:
        self.apply_all(sql.SQL(f"NOT {_NEW}").format(self.position))
        time.sleep(0.002)
        self.position = scalar(self.connection, "SELECT pg_current_snapshot()::text")


class StandbyCapture(VisibilityCapture):
    """Polls a standby: its snapshots name no running transactions, so these seem to have been read."""

    def __init__(self, shop: Shop, names: Sequence[str], standby: Server) -> None:
        super().__init__(shop, names)
        self._shop = shop
        self._url = standby.url(shop.name, MILLSTREAM)

    def start(self) -> None:
        super().start()
        self._catch_up(connect(Address.parse(self._url)))

    def poll(self) -> None:
        self._catch_up(self.reader)
        super().poll()

    def close(self) -> None:
        self.reader.close()
        super().close()

    def _catch_up(self, standby: Connection) -> None:
        """Wait until it has all that the primary has: what is missing then was not merely late."""
        with psycopg.connect(self._shop.server.url(self._shop.name), autocommit=True) as primary:
            primary.execute("SET synchronous_commit = on")
            primary.execute("SELECT pg_current_xact_id()")
            row = primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        while scalar(standby, f"SELECT pg_last_wal_replay_lsn() >= '{row[0]}'") != "True":
            time.sleep(0.002)
        self.reader = standby


def scalar(connection: Connection, query: str) -> str:
    """The only value of a query, as text."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])
