"""Warns the session that creates a trigger on a served table, if the serving role may create event triggers.

The warning comes before the trigger has ever fired. A role that may not create event triggers cannot give it; the first
refresh that finds the trigger warns then, in millstream itself.
"""

from __future__ import annotations

from millstream.postgres.closed_objects import close_only
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import colliding
from millstream.postgres.driver import errors, sql

FUNCTION = "warn_of_triggers"

# An error here would undo the user's own statement: so the ledger may be missing, and nothing is locked or written.
_BODY = """
DECLARE
  made record;
BEGIN
  IF to_regclass({ledger_name}) IS NULL THEN
    RETURN;
  END IF;
  FOR made IN
    SELECT t.tgname, t.tgrelid::regclass AS served, s.stream_table, (t.tgtype & 1) <> 0 AS is_row
    FROM pg_event_trigger_ddl_commands() AS c
    JOIN pg_trigger AS t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
    JOIN pg_proc AS p ON p.oid = t.tgfoid JOIN pg_namespace AS n ON n.oid = p.pronamespace
    JOIN {ledger} AS s ON s.relation = t.tgrelid
    WHERE NOT t.tgisinternal AND coalesce(obj_description(n.oid, 'pg_namespace'), '') NOT LIKE {capture}
  LOOP
    RAISE WARNING 'trigger "%" on %, where millstream serves the stream table %, fires %',
      made.tgname, made.served, made.stream_table,
      CASE WHEN made.is_row THEN 'for each row that a differential refresh changes, but not during a full one'
           ELSE 'for each DELETE, UPDATE and INSERT of a refresh' END
      USING DETAIL = 'It runs with the rights of the role that serves. If it fails, the refresh fails.',
            HINT = 'Serve the table with user_triggers = ''off'' to keep triggers from firing.';
  END LOOP;
END
"""


def install_warning(connection: Connection, schema: str, ledger: sql.Identifier, capture_mark: str) -> bool:
    """Create the event trigger, if it is missing; returns whether it exists then. The caller has a transaction open.

    Args:
        schema: where the function goes; it names the event trigger too.
        ledger: the table of served tables.
        capture_mark: a pattern for the comments of schemas whose triggers are capture's.

    Raises:
        CollidedError: another session has just created it.
    """
    if has_warning(connection, schema):
        return True
    body = sql.SQL(_BODY).format(
        ledger=ledger, ledger_name=sql.Literal(ledger.as_string(connection)), capture=sql.Literal(capture_mark)
    )
    function = sql.Identifier(schema, FUNCTION)
    try:
        with colliding(), connection.transaction():
            connection.execute(
                sql.SQL(
                    "CREATE FUNCTION {}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER "
                    "SET search_path = pg_catalog, pg_temp AS {}"
                ).format(function, sql.Literal(body.as_string(connection)))
            )
            connection.execute(
                sql.SQL(
                    "CREATE EVENT TRIGGER {} ON ddl_command_end WHEN TAG IN ('CREATE TRIGGER') EXECUTE FUNCTION {}()"
                ).format(sql.Identifier(f"{schema}_create_trigger"), function)
            )
            close_only(connection, schema, f"{FUNCTION}()")
    except (errors.InsufficientPrivilege, errors.DuplicateObject):  # the latter: a user's own event trigger
        return False
    return True


def has_warning(connection: Connection, schema: str) -> bool:
    """Whether the function exists, and with it the event trigger."""
    row = connection.execute(
        "SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s",
        [schema, FUNCTION],
    ).fetchone()
    return row is not None


def drop_warning(connection: Connection, schema: str) -> None:
    """Drop the function, and the event trigger with it."""
    connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(sql.Identifier(schema, FUNCTION)))
