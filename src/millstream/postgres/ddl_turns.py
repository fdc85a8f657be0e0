"""Makes sessions change shared objects one at a time, by a lock on a table of our own.

Any role that may connect can hold an advisory lock forever. Only its owner can lock our table in the mode used here. A
statement that is only parsed locks the tables it names without any right on them, but only in the mode that writers
use, and our mode does not conflict with that (SHARE ROW EXCLUSIVE would). The lock takes no transaction id, so a
session that creates a replication slot does not wait for its holder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.postgres.connection import Connection
from millstream.postgres.driver import errors, sql

TURNS = "ddl_lock"
"""The table's name."""


class CollidedError(Exception):
    """Another session has just created or dropped the same object: try again in another transaction."""


@contextmanager
def colliding() -> Iterator[None]:
    """Wrap statements that create what another session may be creating at the same time.

    Raises:
        CollidedError: the other session was first.
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
    """Create the table, if it does not exist.

    Raises:
        CollidedError: another session has just created it.
    """
    with colliding():
        connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ()").format(_table(schema)))


def take_turn(connection: Connection, schema: str) -> None:
    """Be the only session that creates or drops shared objects, until the end of the transaction.

    Raises:
        CollidedError: the table was dropped while this session waited for it.
    """
    try:
        connection.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(_table(schema)))
    except (errors.UndefinedTable, errors.InvalidSchemaName) as e:
        raise CollidedError from e


def drop_turns(connection: Connection, schema: str) -> None:
    """Drop the table; a session that waits for it creates it again."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_table(schema)))


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, TURNS)
