"""The search path of each statement: PostgreSQL's own schemas, and the users' for statements that run their code.

A function or operator that another role has put into a schema of the path may fit the arguments better than
PostgreSQL's own, and would run with our rights. So each operation starts with a path without such schemas. Only the
statements that read or write the served table run under another one, because its triggers, defaults, checks and
policies run inside them: in these statements every operator, function and type is named with its schema.
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
    """Make names refer to PostgreSQL's own objects from now on, even if a trigger has set another path."""
    connection.execute("SET search_path = pg_catalog, pg_temp")


@contextmanager
def users_path(connection: Connection, target: Target) -> Iterator[None]:
    """Inside the block, in a transaction, names are looked up in the served table's schema, then in the role's path.

    For statements that run users' code. Deferred triggers fire at the end of the block instead of at the commit, where
    they would see another path. After an error, the rollback resets the path.
    """
    schema = sql.Literal(sql.Identifier(target.schema).as_string(connection))
    connection.execute(sql.SQL(_USERS).format(schema=schema))
    yield
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL search_path = pg_catalog, pg_temp")
