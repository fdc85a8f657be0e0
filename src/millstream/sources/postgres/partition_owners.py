"""Whoever owns a captured partitioned table can add partitions to it: they get its triggers by the owner's rights."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from millstream.sources.postgres.connection import Connection

# Of triggers only those for rows are given to a new partition.
_LACKING = """
WITH RECURSIVE below AS (
  SELECT c.oid, c.relowner FROM pg_class c WHERE c.oid = ANY(%s) AND c.relkind = 'p'
  UNION
  SELECT c.oid, c.relowner FROM below b JOIN pg_inherits i ON i.inhparent = b.oid JOIN pg_class c ON c.oid = i.inhrelid
  WHERE c.relkind = 'p'
)
SELECT DISTINCT p.proname::text, pg_get_userbyid(b.relowner)::text
FROM below b JOIN pg_trigger t ON t.tgrelid = b.oid JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgtype & 1 = 1 AND p.pronamespace = to_regnamespace(%s)
  AND NOT has_function_privilege(b.relowner, p.oid, 'EXECUTE')
"""


def let_owners_add_partitions(connection: Connection, oids: Sequence[int], schema: str) -> None:
    """Let the owners of captured partitioned tables, and of partitions that have partitions, use the functions.

    Others than at installation own them after ALTER TABLE ... OWNER TO.
    """
    lacking = connection.execute(_LACKING, [list(oids), sql.Identifier(schema).as_string(connection)]).fetchall()
    for function, owner in lacking:
        connection.execute(
            sql.SQL("GRANT EXECUTE ON FUNCTION {}() TO {}").format(
                sql.Identifier(schema, function), sql.Identifier(owner)
            )
        )
