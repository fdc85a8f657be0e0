"""What a role lacks to capture a table, as the statements to run."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.relations import Relation

_TABLES = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'TRIGGER'), row_security_active(c.oid),
       pg_has_role(c.relowner, 'USAGE'), EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s) ORDER BY c.oid
"""


def required_grants(connection: Connection, relation: Relation, schema: str) -> list[str]:
    """The statements that let the connection's role capture a table into buffers of a schema; none if it may already.

    An owner of the table, or for some an administrator, has to run them.
    """
    row = connection.execute(
        "SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'), "
        "EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)",
        [schema],
    ).fetchone()
    assert row is not None
    role, database, may_create, has_schema = row
    grants: list[str] = []

    def grant(template: LiteralString, *names: sql.Identifier) -> None:
        text = sql.SQL(template).format(*names, role=sql.Identifier(role)).as_string(connection)
        if text not in grants:
            grants.append(text)

    if not has_schema and not may_create:
        grant("GRANT CREATE ON DATABASE {} TO {role};", sql.Identifier(database))
    oids = [relation.oid, *(leaf.oid for leaf in relation.leaves)]
    for (
        namespace,
        name,
        owner,
        may_use,
        may_select,
        may_trigger,
        is_filtered,
        is_owner,
        is_replicated,
    ) in connection.execute(_TABLES, [oids]):
        table = sql.Identifier(namespace, name)
        if not may_use:
            grant("GRANT USAGE ON SCHEMA {} TO {role};", sql.Identifier(namespace))
        if not may_select:
            grant("GRANT SELECT ON {} TO {role};", table)
        if not may_trigger:
            grant("GRANT TRIGGER ON {} TO {role};", table)
        if is_filtered:  # triggers see all rows, and a SELECT would see those that the policies let through
            grant("ALTER ROLE {role} BYPASSRLS;")
        if is_replicated and not is_owner:  # to fire for replicated changes a trigger must be ENABLE ALWAYS
            grant("GRANT {} TO {role};", sql.Identifier(owner))
    return grants
