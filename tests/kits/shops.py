"""A database of a test's own, with roles that have no special rights."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.testing.postgres_server import Server

OWNER, MILLSTREAM, STRANGER = "shop_owner", "millstream", "stranger"
made: list[tuple[Server, str]] = []
"""The databases that were made and not yet dropped."""


@dataclass(frozen=True)
class Shop:
    """A database of a test's own."""

    server: Server
    name: str

    @property
    def address(self) -> Address:
        """As millstream reaches it: a role that is no superuser and owns nothing."""
        return Address.parse(self.server.url(self.name, MILLSTREAM))

    def connect(self) -> Connection:
        """A connection as millstream makes it."""
        return connect(self.address)

    def owner(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection of the tables' owner, in autocommit mode."""
        return psycopg.connect(self.server.url(self.name, OWNER), autocommit=True)


def new_shop(server: Server) -> Shop:
    """An empty database; `millstream` may create schemas in it and read and trigger on what the owner makes."""
    name = server.new_database(OWNER, MILLSTREAM, STRANGER)
    with psycopg.connect(server.url(name, OWNER), autocommit=True) as owner:
        owner.execute(f'GRANT CREATE ON DATABASE "{name}" TO {MILLSTREAM}')
        owner.execute(f"GRANT USAGE ON SCHEMA public TO {MILLSTREAM}")
        owner.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, TRIGGER ON TABLES TO {MILLSTREAM}")
    made.append((server, name))
    return Shop(server, name)


def detach_halfway(shop: Shop, owner: psycopg.Connection[Any], parent: str, partition: str) -> None:
    """What is left of DETACH PARTITION ... CONCURRENTLY if it is interrupted while it waits for a reader."""
    with psycopg.connect(shop.server.url(shop.name)) as reader:
        reader.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier(parent)))
        statement = sql.SQL("ALTER TABLE {} DETACH PARTITION {} CONCURRENTLY")
        owner.execute("SET statement_timeout = '300ms'")
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            owner.execute(statement.format(sql.Identifier(parent), sql.Identifier(partition)))
        owner.execute("RESET statement_timeout")
    row = owner.execute("SELECT count(*) FROM pg_inherits WHERE inhdetachpending").fetchone()
    assert row == (1,)
