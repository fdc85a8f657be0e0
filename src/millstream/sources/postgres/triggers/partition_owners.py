"""Grants by which the owners of captured partitioned tables can add partitions, which get the triggers too."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql

# A new partition gets row triggers only.
_OWNERS = """
WITH RECURSIVE below AS (
  SELECT c.oid, c.relowner FROM pg_class c
  WHERE c.relkind = 'p' AND (c.oid = ANY(%(oids)s::oid[]) OR %(oids)s::oid[] IS NULL)
  UNION
  SELECT c.oid, c.relowner FROM below b JOIN pg_inherits i ON i.inhparent = b.oid JOIN pg_class c ON c.oid = i.inhrelid
  WHERE c.relkind = 'p'
)
SELECT DISTINCT p.proname::text, pg_get_userbyid(b.relowner)::text,
       has_function_privilege(b.relowner, p.oid, 'EXECUTE')
FROM below b JOIN pg_trigger t ON t.tgrelid = b.oid JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgtype & 1 = 1 AND p.pronamespace = to_regnamespace(%(schema)s)
"""


def grant_to_partition_owners(connection: Connection, oids: Sequence[int], schema: str) -> None:
    """Let the owners of captured partitioned tables, and of partitions that have partitions, use the functions.

    Their owners may differ from those at installation, after ALTER TABLE ... OWNER TO.
    """
    for function, owner, may in _owners(connection, oids, schema):
        if not may:
            connection.execute(
                sql.SQL("GRANT EXECUTE ON FUNCTION {}() TO {}").format(
                    sql.Identifier(schema, function), sql.Identifier(owner)
                )
            )


def granted_partition_owners(connection: Connection, schema: str) -> set[tuple[str, str]]:
    """The functions, as `Grant` names them, and the roles that need them to add partitions."""
    return {(f"{function}()", owner) for function, owner, _ in _owners(connection, None, schema)}


def _owners(connection: Connection, oids: Sequence[int] | None, schema: str) -> list[tuple[str, str, bool]]:
    """Function, owner, and whether the owner may use it; of all partitioned tables, or of some."""
    parameters = {
        "oids": list(oids) if oids is not None else None,
        "schema": sql.Identifier(schema).as_string(connection),
    }
    return connection.execute(_OWNERS, parameters).fetchall()
