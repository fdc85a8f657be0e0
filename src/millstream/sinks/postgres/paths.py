"""Whose names a statement means: PostgreSQL's own, but where users' code runs, which sees the path of our role.

A function or operator that somebody has put into a schema of the path may suit the arguments better than PostgreSQL's
own, and would run with our rights. So the session has a path without such schemas from the beginning of each piece of
work, and only the statements that fire triggers run under another one: in these every operator, function and type is
named with its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.sinks.postgres.target import Connection


def pin_path(connection: Connection) -> None:
    """Have names mean PostgreSQL's own from now on: also after a trigger has set another path for the session."""
    connection.execute("SET search_path = pg_catalog, pg_temp")


@contextmanager
def users_path(connection: Connection) -> Iterator[None]:
    """Inside the block, in a transaction, names mean what the role has chosen; for statements that run users' code.

    Nothing of theirs waits for the commit: deferred triggers fire at the block's end. An error leaves all to the
    transaction's end.
    """
    connection.execute("SET LOCAL search_path TO DEFAULT")
    yield
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL search_path = pg_catalog, pg_temp")
