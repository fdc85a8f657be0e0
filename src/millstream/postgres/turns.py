"""One at a time, by a lock on a table of our own.

The number of an advisory lock can be held by anybody who may connect, for ever. A table of ours cannot be locked so: in
the mode used here only by its owner. A statement that is merely parsed locks the tables it names without any right on
them, but no more than writers do, and this mode does not mind them (SHARE ROW EXCLUSIVE would). It takes no transaction
id, so that nobody who makes a replication slot waits for who holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import errors, sql

from millstream.postgres.named import Connection

TURNS = "ddl_lock"
"""The table's name."""


class CollidedError(Exception):
    """Another session has just made or dropped the same object: it is to be tried again, in another transaction."""


@contextmanager
def colliding() -> Iterator[None]:
    """Around statements that make what another session may be making at the same time.

    Raises:
        CollidedError: it has.
    """
    try:
        yield
    except (errors.DuplicateSchema, errors.DuplicateTable, errors.DuplicateFunction) as e:
        raise CollidedError from e
    except errors.UniqueViolation as e:
        if e.diag.schema_name != "pg_catalog":
            raise
        raise CollidedError from e


def prepare_turns(connection: Connection, schema: str) -> None:
    """Make the table, if it is not there.

    Raises:
        CollidedError: another session has just made it.
    """
    with colliding():
        connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ()").format(_table(schema)))


def take_turn(connection: Connection, schema: str) -> None:
    """Be the only one, until the end of the transaction, that makes or drops objects that all of us share.

    Raises:
        CollidedError: it was dropped while others waited for it.
    """
    try:
        connection.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(_table(schema)))
    except (errors.UndefinedTable, errors.InvalidSchemaName) as e:
        raise CollidedError from e


def drop_turns(connection: Connection, schema: str) -> None:
    """Drop the table: those who wait for it make it again."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_table(schema)))


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, TURNS)
