"""Removes the bookkeeping of served tables from a database that no millstream reaches any more."""

from __future__ import annotations

from psycopg import sql

# A schema of that name may be somebody else's, or other lakes' as well, or hold what users have put there.
_REMOVAL = """
DECLARE
  places regclass;
BEGIN
  IF EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = {schema_name} AND c.relname = 'serving'
               AND pg_has_role(n.nspowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')) THEN
    DELETE FROM {serving} WHERE lake_id = {lake};
    IF NOT EXISTS (SELECT FROM {serving}) THEN
      FOR places IN SELECT oid FROM pg_class WHERE relnamespace = {schema_text}::regnamespace AND relkind = 'r'
                    AND relname ~ '^rows_[0-9a-f]{{16}}$' LOOP
        EXECUTE format('DROP TABLE %s', places);
      END LOOP;
      DROP VIEW {view};
      DROP TABLE {serving};
      BEGIN
        DROP SCHEMA {schema};
      EXCEPTION WHEN dependent_objects_still_exist THEN
        NULL;
      END;
    END IF;
  END IF;
END
"""


def bookkeeping_removal(schema: str, lake_id: str) -> sql.Composed:
    """The statement that forgets a lake's served tables, which stay as they are, and drops what nobody needs then."""
    body = sql.SQL(_REMOVAL).format(
        schema_name=sql.Literal(schema),
        schema_text=sql.Literal(sql.Identifier(schema).as_string()),
        view=sql.Identifier(schema, "served_tables"),
        serving=sql.Identifier(schema, "serving"),
        lake=sql.Literal(lake_id),
        schema=sql.Identifier(schema),
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))
