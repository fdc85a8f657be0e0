"""The search path of each statement: PostgreSQL's own schemas only, except where users' code runs, which sees theirs.

A function or operator that somebody has put into a schema of the path may fit the arguments better than PostgreSQL's
own, and would run with our rights. So the session has a path without such schemas from the beginning of each piece of
work. Only the statements that read or write the served table run under another one, because its triggers, defaults,
checks and policies run inside them: in these statements every operator, function and type is named with its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres.target import Target

# The second statement already runs under the role's own path.
_USERS = """
SET LOCAL search_path TO DEFAULT;
SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', {schema}, CASE
  WHEN pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) ''
  THEN pg_catalog.current_setting('search_path') END), true)
"""


def pin_path(connection: Connection) -> None:
    """Have names mean PostgreSQL's own from now on: also after a trigger has set another path for the session."""
    connection.execute("SET search_path = pg_catalog, pg_temp")


@contextmanager
def users_path(connection: Connection, target: Target) -> Iterator[None]:
    """Inside the block, in a transaction, names mean what is in the served table's schema, then in the role's own path.

    For statements that run users' code. Nothing of theirs waits for the commit: deferred triggers fire at the block's
    end. An error leaves all to the transaction's end.
    """
    schema = sql.Literal(sql.Identifier(target.schema).as_string(connection))
    connection.execute(sql.SQL(_USERS).format(schema=schema))
    yield
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL search_path = pg_catalog, pg_temp")
