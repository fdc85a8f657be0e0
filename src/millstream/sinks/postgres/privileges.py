"""The privileges that a role lacks to serve a table, as GRANT statements."""

from __future__ import annotations

from typing import LiteralString

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres.target import Target

_RIGHTS = """
SELECT current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'),
       EXISTS (SELECT FROM pg_namespace WHERE nspname = %(bookkeeping)s),
       coalesce((SELECT has_schema_privilege(n.oid, 'USAGE') FROM pg_namespace n WHERE n.nspname = %(schema)s), true),
       coalesce((SELECT has_schema_privilege(n.oid, 'CREATE') FROM pg_namespace n WHERE n.nspname = %(schema)s), true)
"""
# A role that changes a table's owner must be able to act as the new owner, who must be able to create tables there.
_OWNERS = """
SELECT r.rolname::text, pg_has_role(r.oid, 'MEMBER'), has_schema_privilege(r.oid, n.oid, 'CREATE')
FROM pg_roles r, pg_namespace n WHERE r.rolname = %(owner)s AND n.nspname = %(schema)s
"""
_TABLE = """
SELECT pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relname = %(table)s
"""


def missing_grants(connection: Connection, target: Target, bookkeeping: str) -> list[str]:
    """The GRANT statements that the connection's role needs to serve a table; empty if none of these is missing.

    Args:
        bookkeeping: the schema of the ledger.
    """
    names = {"bookkeeping": bookkeeping, "schema": target.schema, "table": target.table, "owner": target.owner}
    row = connection.execute(_RIGHTS, names).fetchone()
    assert row is not None
    role, database, may_create, has_bookkeeping, may_use, may_make = row
    table = connection.execute(_TABLE, names).fetchone()
    grants: list[str] = []

    def grant(template: LiteralString, *parts: str) -> None:
        identifiers = [sql.Identifier(part) for part in parts]
        grants.append(sql.SQL(template).format(*identifiers).as_string(connection))

    if not has_bookkeeping and not may_create:
        grant("GRANT CREATE ON DATABASE {} TO {};", database, role)
    if not may_use:
        grant("GRANT USAGE ON SCHEMA {} TO {};", target.schema, role)
    if not may_make and table is None:
        grant("GRANT CREATE ON SCHEMA {} TO {};", target.schema, role)
    for owner, is_member, owner_may_make in connection.execute(_OWNERS, names):
        if not is_member:
            grant("GRANT {} TO {};", owner, role)
        if not owner_may_make:
            grant("GRANT CREATE ON SCHEMA {} TO {};", target.schema, owner)
    if table is not None and not table[1] and table[0] != target.owner:
        grant("GRANT {} TO {};", table[0], role)
    return grants
