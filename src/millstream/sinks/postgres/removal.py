"""Removes the bookkeeping of served tables from a database, with the last lake that serves into it."""

from __future__ import annotations

from psycopg import sql

# A schema of that name may be somebody else's, or other lakes' as well.
_REMOVAL = """
BEGIN
  IF EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = {schema_name} AND c.relname = 'serving'
               AND pg_has_role(n.nspowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')) THEN
    DELETE FROM {serving} WHERE lake_id = {lake};
    IF NOT EXISTS (SELECT FROM {serving}) THEN
      DROP SCHEMA {schema} CASCADE;
    END IF;
  END IF;
END
"""


def bookkeeping_removal(schema: str, lake_id: str) -> sql.Composed:
    """The statement that forgets a lake's served tables, which stay as they are, and drops what nobody needs then."""
    body = sql.SQL(_REMOVAL).format(
        schema_name=sql.Literal(schema),
        serving=sql.Identifier(schema, "serving"),
        lake=sql.Literal(lake_id),
        schema=sql.Identifier(schema),
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))
