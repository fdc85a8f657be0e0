"""Closes the objects that millstream creates to all other roles, despite the role's default privileges.

ALTER DEFAULT PRIVILEGES grants rights on every object that a role creates from then on: another role could read
captured rows, or put a trigger on the bookkeeping, which would run with our rights. So the transaction that creates an
object revokes all rights on it that any role but its owner has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import CollidedError
from millstream.postgres.driver import errors, sql

# pg_type holds no rights on a table's row type; millstream creates no other types, but they would be found.
_GRANTED = """
WITH home AS (SELECT oid, nspname, nspowner, nspacl FROM pg_namespace WHERE nspname = %(schema)s),
objects (kind, name, owner, acl) AS (
  SELECT 'SCHEMA', nspname::text, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM home
  UNION ALL
  SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname::text, c.relowner,
         coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))
  FROM pg_class c JOIN home ON home.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  UNION ALL
  SELECT 'ROUTINE', format('%%s(%%s)', quote_ident(p.proname), pg_get_function_identity_arguments(p.oid)), p.proowner,
         coalesce(p.proacl, acldefault('f', p.proowner))
  FROM pg_proc p JOIN home ON home.oid = p.pronamespace
  UNION ALL
  SELECT 'TYPE', t.typname::text, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
  FROM pg_type t JOIN home ON home.oid = t.typnamespace WHERE t.typrelid = 0 AND t.typelem = 0
)
SELECT DISTINCT o.kind, o.name, CASE a.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(a.grantee)::text END,
       a.privilege_type
FROM objects o CROSS JOIN LATERAL aclexplode(o.acl) a
WHERE pg_get_userbyid(o.owner) = current_user AND a.grantee <> o.owner ORDER BY 1, 2, 3, 4
"""


@dataclass(frozen=True, slots=True)
class Grant:
    """A right on an object that a role other than its owner has.

    Args:
        kind: SCHEMA, TABLE (also a view), SEQUENCE, ROUTINE or TYPE.
        name: without the schema; for a routine with its argument types, as in a statement.
        grantee: None for PUBLIC.
    """

    kind: str
    name: str
    grantee: str | None
    privilege: str


def grants(connection: Connection, schema: str) -> list[Grant]:
    """The rights of others on our own objects in a schema, and on the schema if it is ours."""
    return [Grant(*row) for row in connection.execute(_GRANTED, {"schema": schema})]


def close(connection: Connection, schema: str, is_meant: Callable[[Grant], bool] = lambda _: False) -> None:
    """Revoke all rights of others in a schema, except the intended ones; in the transaction that creates an object.

    Raises:
        CollidedError: another session has just revoked the same right on an object that existed before.
    """
    for grant in grants(connection, schema):
        if not is_meant(grant):
            statement = sql.SQL("REVOKE {} ON {} {} FROM {} CASCADE").format(
                sql.SQL(grant.privilege),
                sql.SQL(grant.kind),
                _identifier(schema, grant),
                sql.SQL("PUBLIC") if grant.grantee is None else sql.Identifier(grant.grantee),
            )
            try:
                connection.execute(statement)
            except errors.InternalError_ as e:  # tuple concurrently updated
                raise CollidedError from e


def close_only(connection: Connection, schema: str, *names: str) -> None:
    """Revoke all rights of others on some objects that the same transaction has created."""
    close(connection, schema, lambda grant: grant.name not in names)


def _identifier(schema: str, grant: Grant) -> sql.Composable:
    if grant.kind == "SCHEMA":
        return sql.Identifier(schema)
    if grant.kind == "ROUTINE":
        return sql.SQL("{}.{}").format(sql.Identifier(schema), sql.SQL(grant.name))
    return sql.Identifier(schema, grant.name)
