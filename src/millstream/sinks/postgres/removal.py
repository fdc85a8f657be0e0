"""Removes the bookkeeping of served tables from a database that no millstream reaches any more."""

from __future__ import annotations

from psycopg import sql

# It is found by its columns, not by the name that a setting gives its schema now. A schema may be other lakes' as well,
# or hold what users have put there; what depends on it keeps it.
_REMOVAL = """
DECLARE
  home name;
  id text;
  places regclass;
  is_used boolean;
BEGIN
  FOR home IN
    SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'serving' AND c.relkind = 'r'
      AND pg_has_role(n.nspowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
      AND 4 = (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
               AND a.attname IN ('stream_table_id', 'lake_id', 'relation', 'filenode'))
  LOOP
    FOR id IN EXECUTE format('DELETE FROM %I.serving WHERE lake_id = %L RETURNING stream_table_id', home, {lake}) LOOP
      EXECUTE format('DROP TABLE IF EXISTS %I.%I', home, 'rows_' || left(replace(id, '-', ''), 16));
    END LOOP;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.serving)', home) INTO is_used;
    CONTINUE WHEN is_used;
    BEGIN
      FOR places IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = home AND c.relkind = 'r' AND c.relname ~ '^rows_[0-9a-f]{{16}}$' LOOP
        EXECUTE format('DROP TABLE %s', places);
      END LOOP;
      EXECUTE format('DROP VIEW IF EXISTS %I.served_tables', home);
      EXECUTE format('DROP TABLE %I.serving', home);
      BEGIN
        EXECUTE format('DROP SCHEMA %I', home);
      EXCEPTION WHEN dependent_objects_still_exist THEN
        NULL;
      END;
    EXCEPTION WHEN dependent_objects_still_exist THEN
      NULL;
    END;
  END LOOP;
END
"""


def bookkeeping_removal(lake_id: str) -> sql.Composed:
    """The statement that forgets a lake's served tables, which stay as they are, and drops what nobody needs then."""
    body = sql.SQL(_REMOVAL).format(lake=sql.Literal(lake_id))
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))
