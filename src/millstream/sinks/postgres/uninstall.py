"""Removes the ledger of served tables from a database that millstream no longer reaches."""

from __future__ import annotations

from millstream.postgres.ddl_turns import TURNS
from millstream.postgres.driver import sql
from millstream.sinks.postgres.trigger_warning import FUNCTION

# The caller may have more rights than the role that served, so no other role's code may run: names refer to
# PostgreSQL's own objects (types are qualified, since they are looked up before the first statement), and only objects
# that the serving role owns are touched, as that role. That is not enough by itself, since a trigger may switch back to
# the caller's role: so a table with triggers is refused unless the serving role itself is the caller.
# The ledger is found by its columns, not by the name that a setting gives its schema now. Other lakes may use the same
# schema, and users may have put objects there: the schema is kept while anything in it remains.
_REMOVAL = """
DECLARE
  keeper CONSTANT pg_catalog.text := coalesce({role}, current_user);
  caller CONSTANT pg_catalog.text := current_user;
  caller_role CONSTANT pg_catalog.text := pg_catalog.current_setting('role');
  home pg_catalog.text;
  serving pg_catalog.oid;
  id pg_catalog.text;
  places pg_catalog.regclass;
  is_used boolean;
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF caller <> keeper THEN
    EXECUTE format('SET LOCAL ROLE %I', keeper);
  END IF;
  FOR home, serving IN
    SELECT n.nspname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'serving' AND c.relkind = 'r'
      AND pg_get_userbyid(n.nspowner) = keeper AND pg_get_userbyid(c.relowner) = keeper
      AND 4 = (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
               AND (a.attname, a.atttypid) IN (('stream_table_id', 'text'::regtype), ('lake_id', 'text'::regtype),
                                               ('relation', 'oid'::regtype), ('filenode', 'oid'::regtype)))
  LOOP
    EXECUTE format('LOCK TABLE ONLY %I.serving IN ACCESS EXCLUSIVE MODE', home);
    IF caller <> keeper AND (
      to_regclass(format('%I.serving', home)) IS DISTINCT FROM serving
      OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = serving)
      OR EXISTS (SELECT FROM pg_class c WHERE c.oid = serving AND (c.relhasrules OR c.relrowsecurity))
    ) THEN
      RAISE EXCEPTION '%.serving has triggers, rules or policies, which would run with your rights', home
        USING HINT = format('run this as the role %I', keeper);
    END IF;
    FOR id IN EXECUTE
      format('DELETE FROM ONLY %I.serving WHERE lake_id = %L RETURNING stream_table_id', home, {lake})
    LOOP
      EXECUTE format('DROP TABLE IF EXISTS %I.%I', home, 'rows_' || left(replace(id, '-', ''), 16));
    END LOOP;
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %I.serving)', home) INTO is_used;
    CONTINUE WHEN is_used;
    BEGIN
      FOR places IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = home AND c.relkind = 'r' AND pg_get_userbyid(c.relowner) = keeper
                      AND c.relname ~ '^rows_[0-9a-f]{{16}}$' LOOP
        EXECUTE format('DROP TABLE %s', places);
      END LOOP;
      IF EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                 WHERE n.nspname = home AND p.proname = {warning} AND pg_get_userbyid(p.proowner) = keeper
                   AND p.prorettype = 'event_trigger'::regtype AND p.pronargs = 0) THEN
        EXECUTE format('DROP FUNCTION %I.%I() CASCADE', home, {warning});
      END IF;
      EXECUTE format('DROP VIEW IF EXISTS %I.served_tables', home);
      EXECUTE format('DROP TABLE %I.serving', home);
      EXECUTE format('DROP TABLE IF EXISTS %I.{turns}', home);
      BEGIN
        EXECUTE format('DROP SCHEMA %I', home);
      EXCEPTION WHEN dependent_objects_still_exist THEN
        NULL;
      END;
    EXCEPTION WHEN dependent_objects_still_exist THEN
      NULL;
    END;
  END LOOP;
  PERFORM set_config('role', caller_role, true);
END
"""


def bookkeeping_removal(lake_id: str, role: str | None = None) -> sql.Composed:
    """The statement that removes a lake's served tables from the ledger, and the ledger if no other lake uses it.

    The served tables stay as they are.

    Args:
        role: the one that serves, if another role may run the statement; no other role's objects are touched.
    """
    body = sql.SQL(_REMOVAL).format(
        lake=sql.Literal(lake_id), role=sql.Literal(role), turns=sql.SQL(TURNS), warning=sql.Literal(FUNCTION)
    )
    return sql.SQL("DO {}").format(sql.Literal(body.as_string()))
