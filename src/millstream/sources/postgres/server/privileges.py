"""The rights that a role lacks to capture a database or one of its tables, as the statements that grant them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sources.postgres.server.relations import Relation

# A managed service that does not grant REPLICATION may have a role for it.
_REPLICATION = """
SELECT r.rolname::text, r.rolsuper OR r.rolreplication OR coalesce(pg_has_role(m.oid, 'member'), false), m.rolname::text
FROM pg_roles r LEFT JOIN pg_roles m ON m.rolname = 'rds_replication' WHERE r.rolname = current_user
"""
_SCHEMAS = """
SELECT n.nspname, has_schema_privilege(n.oid, 'USAGE'),
       bool_or(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'TRIGGER'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT LIKE 'pg\\_%%'
      AND n.nspname <> 'information_schema' AND n.nspname <> %s
GROUP BY n.oid, n.nspname ORDER BY n.nspname
"""
_TABLES = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'TRIGGER'), row_security_active(c.oid),
       pg_has_role(c.relowner, 'USAGE'), EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s) ORDER BY c.oid
"""


@dataclass(frozen=True, slots=True)
class MissingGrants:
    """What an administrator has to run.

    Args:
        required: without these nothing can be captured.
        by_schema: for schemas in which no table can be read, which may be intended.
    """

    required: tuple[str, ...]
    by_schema: tuple[str, ...]


def missing_grants(connection: Connection, buffer_schema: str, *, wal: bool) -> MissingGrants:
    """What the connection's role lacks in its database.

    Args:
        wal: whether its WAL must be readable.
    """
    row = connection.execute(
        "SELECT current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'), "
        "EXISTS (SELECT FROM pg_namespace WHERE nspname = %s), "
        "has_function_privilege('pg_control_system()', 'EXECUTE')",
        [buffer_schema],
    ).fetchone()
    assert row is not None
    role, database, may_create, has_schema, may_identify = row
    names = {"role": sql.Identifier(role), "database": sql.Identifier(database)}
    required: list[sql.Composed] = []
    if not has_schema and not may_create:
        required.append(sql.SQL("GRANT CREATE ON DATABASE {database} TO {role};").format(**names))
    if not may_identify:
        required.append(sql.SQL("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {role};").format(**names))
    if wal and (lacking := missing_replication(connection)):
        required.append(sql.SQL("{};").format(lacking))
    by_schema: list[sql.Composed] = []
    for schema, may_use, may_read in connection.execute(_SCHEMAS, [buffer_schema]):
        if not may_use:
            by_schema.append(sql.SQL("GRANT USAGE ON SCHEMA {} TO {role};").format(sql.Identifier(schema), **names))
        if not may_read:
            grant = sql.SQL("GRANT SELECT, TRIGGER ON ALL TABLES IN SCHEMA {} TO {role};")
            by_schema.append(grant.format(sql.Identifier(schema), **names))
    return MissingGrants(_texts(connection, required), _texts(connection, by_schema))


def missing_table_grants(connection: Connection, relation: Relation, schema: str) -> list[str]:
    """The statements that let the connection's role capture a table into buffers of a schema; none if it may already.

    The table's owner has to run them; some need an administrator.
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
        if is_filtered:  # triggers see all rows, but a SELECT only those that the policies let through
            grant("ALTER ROLE {role} BYPASSRLS;")
        if is_replicated and not is_owner:  # to fire for replicated changes a trigger must be ENABLE ALWAYS
            grant("GRANT {} TO {role};", sql.Identifier(owner))
    return grants


def missing_replication(connection: Connection) -> sql.Composed | None:
    """The statement that lets the connection's role read the WAL, if it may not."""
    row = connection.execute(_REPLICATION).fetchone()
    assert row is not None
    role, may_replicate, special = row
    if may_replicate:
        return None
    if special is not None:
        return sql.SQL("GRANT {} TO {}").format(sql.Identifier(special), sql.Identifier(role))
    return sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role))


def _texts(connection: Connection, statements: list[sql.Composed]) -> tuple[str, ...]:
    return tuple(statement.as_string(connection) for statement in statements)
