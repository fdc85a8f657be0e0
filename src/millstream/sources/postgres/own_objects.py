"""What millstream owns in an attached database, as a whole: one schema of buffers, one slot and its publication.

The schema is made when the database is attached and says whose it is: two lakes may capture one database, each with a
schema of its own (the setting `change_buffer_schema`).
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.connection import Connection

_MARK = "millstream: buffers of the lake "
_MOST_COUNTED = 1_000_000


def claim_schema(connection: Connection, schema: str, lake: str) -> None:
    """Make the schema for buffers, or find it to be this lake's.

    Raises:
        MillstreamError: NAME_TAKEN if it is somebody else's.
    """
    with connection.transaction():
        row = connection.execute(
            "SELECT pg_has_role(nspowner, 'USAGE'), obj_description(oid, 'pg_namespace') FROM pg_namespace "
            "WHERE nspname = %s",
            [schema],
        ).fetchone()
        if row is not None and (not row[0] or row[1] not in (None, _MARK + lake)):
            owner = "another lake" if str(row[1]).startswith(_MARK) else "somebody else"
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"the database's schema {schema} belongs to {owner}",
                hint="set change_buffer_schema to another name; or, if that lake is no more, "
                f"run in the database: DROP SCHEMA {schema} CASCADE",
            )
        if row is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        comment = sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(schema), sql.Literal(_MARK + lake))
        connection.execute(comment)


def removal(schema: str, slot: str) -> list[sql.Composed]:
    """The statements that remove everything capture has put into a database, whatever has become of its tables.

    The triggers are on other roles' tables, and go with their functions.
    """
    names = {"schema": sql.Identifier(schema), "slot": sql.Literal(slot), "publication": sql.Identifier(slot)}
    return [
        sql.SQL(text).format(**names)
        for text in (
            "SET lock_timeout = '10s';",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot};",
            "DROP PUBLICATION IF EXISTS {publication};",
            "DROP SCHEMA IF EXISTS {schema} CASCADE;",
            "RESET lock_timeout;",
        )
    ]


def buffered_rows(connection: Connection, schema: str, oids: Sequence[int]) -> dict[int, int]:
    """How many changes wait in the buffers of those tables that have one; of very many not all are counted."""
    found: dict[int, int] = {}
    for oid in oids:
        buffer = sql.Identifier(schema, f"changes_{oid}")
        if connection.execute("SELECT to_regclass(%s)", [buffer.as_string(connection)]).fetchone() == (None,):
            continue
        counted = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS waiting").format(buffer, _MOST_COUNTED)
        row = connection.execute(counted).fetchone()
        assert row is not None
        found[oid] = row[0]
    return found
