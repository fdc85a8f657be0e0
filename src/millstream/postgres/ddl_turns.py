"""Sessions change shared objects one at a time, by a lock on a table of our own.

Anybody who may connect can hold an advisory lock for ever. A table of ours can be locked in the mode used here only by
its owner. A statement that is merely parsed locks the tables it names without any right on them, but only as writers
do, and this mode does not conflict with that (SHARE ROW EXCLUSIVE would). The lock takes no transaction id, so that a
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
    """Another session has just made or dropped the same object: try again in another transaction."""


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
    """Make the table, if it does not exist.

    Raises:
        CollidedError: another session has just made it.
    """
    with colliding():
        connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ()").format(_table(schema)))


def take_turn(connection: Connection, schema: str) -> None:
    """Until the end of the transaction, be the only session that makes or drops shared objects.

    Raises:
        CollidedError: the table was dropped while this session waited for it.
    """
    try:
        connection.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(_table(schema)))
    except (errors.UndefinedTable, errors.InvalidSchemaName) as e:
        raise CollidedError from e


def drop_turns(connection: Connection, schema: str) -> None:
    """Drop the table; a session that waits for it makes it again."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_table(schema)))


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, TURNS)
