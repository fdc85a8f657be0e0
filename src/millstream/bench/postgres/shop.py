"""The PostgreSQL database of the benchmark: roles without special rights, and tables of eight columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from millstream.postgres.address import Address
from millstream.testing.postgres_server import FAST, Server

OWNER, MILLSTREAM = "shop_owner", "millstream"
SETTINGS = {
    **FAST,
    "shared_buffers": "256MB",
    # background work of the server must not disturb the comparison
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}
Connection = psycopg.Connection[tuple[Any, ...]]

_DEFINITION = """
(id bigint PRIMARY KEY, customer integer NOT NULL, region text NOT NULL, status text NOT NULL,
 amount numeric(12,2) NOT NULL, score double precision, placed_at timestamptz NOT NULL, note text)
"""
_ROW = """
{id}, ({id} % 1000)::integer, 'r' || {id} % 100, 'new', ({id} * 7919 % 1000000) / 100.0, {id} / 7.0::double precision,
timestamptz '2024-01-01 00:00:00+00' + {id} * interval '1 second',
CASE WHEN {id} % 3 > 0 THEN 'note of order ' || {id} END
"""
COLUMNS = {
    "id": pa.int64(),
    "customer": pa.int32(),
    "region": pa.string(),
    "status": pa.string(),
    "amount": pa.decimal128(12, 2),
    "score": pa.float64(),
    "placed_at": pa.timestamp("us", "UTC"),
    "note": pa.string(),
}


@dataclass(frozen=True)
class Shop:
    """A database of a server."""

    server: Server
    name: str

    @property
    def address(self) -> Address:
        """With millstream's role: not a superuser, but a member of the tables' owner, and allowed to replicate."""
        return Address.parse(self.server.url(self.name, MILLSTREAM))

    def owner(self) -> Connection:
        """A connection of the application, which owns the tables; in autocommit mode."""
        return psycopg.connect(self.server.url(self.name, OWNER), autocommit=True)


def new_shop(server: Server) -> Shop:
    """An empty database."""
    name = server.new_database(OWNER, MILLSTREAM)
    with server.superuser(name) as superuser:
        superuser.execute(f"GRANT {OWNER} TO {MILLSTREAM}".encode())
        superuser.execute(f"ALTER ROLE {MILLSTREAM} REPLICATION".encode())
        superuser.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(*map(sql.Identifier, (name, MILLSTREAM))))
    return Shop(server, name)


def create_table(connection: Connection, name: str, rows: int = 0) -> None:
    """Create a table of eight columns with a primary key, and fill it with the ids from 1 on."""
    connection.execute(sql.SQL("CREATE TABLE {} ").format(sql.Identifier(name)) + sql.SQL(_DEFINITION))
    if rows:
        connection.execute(insertion(name, 1, rows))
        connection.execute(sql.SQL("VACUUM (ANALYZE, FREEZE) {}").format(sql.Identifier(name)))


def insertion(name: str, first: int, rows: int) -> sql.Composed:
    """Insert rows by one statement."""
    return sql.SQL("INSERT INTO {} SELECT {} FROM generate_series({}::bigint, {}) AS i (id)").format(
        sql.Identifier(name), _row(sql.Identifier("id")), sql.Literal(first), sql.Literal(first + rows - 1)
    )


def insertion_of_one(name: str) -> sql.Composed:
    """Insert the row with the id $1."""
    return sql.SQL("INSERT INTO {} SELECT {}").format(sql.Identifier(name), _row(sql.SQL("$1::bigint")))


def _row(id_: sql.Composable) -> sql.Composed:
    return sql.SQL(_ROW).format(id=id_)
