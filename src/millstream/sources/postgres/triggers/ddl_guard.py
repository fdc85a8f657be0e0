"""Refuses DDL that changes captured columns, in the database itself, if the role may create event triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.postgres.closed_objects import close_only
from millstream.postgres.connection import Connection
from millstream.postgres.driver import psycopg, sql

_TABLE, _FUNCTION = "guarded_columns", "guard_columns"
_EVENTS = ("ddl_command_end", "sql_drop")

# Looks for a table or column that has changed, after the statement but before its end: an error undoes it.
_BODY = """
DECLARE
  touched {table};
BEGIN
  SELECT g.* INTO touched FROM {table} g
  WHERE NOT EXISTS (
    SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE a.attrelid = g.relation AND a.attnum = g.number AND NOT a.attisdropped AND a.attname = g.name
      AND a.atttypid = g.type AND a.atttypmod = g.modifier AND c.relname = g.table_name AND n.nspname = g.schema_name)
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'column % of %.% is read by stream tables of millstream, and block_source_ddl is set',
      touched.name, touched.schema_name, touched.table_name
      USING ERRCODE = 'dependent_objects_still_exist',
            HINT = 'Drop or redefine the stream tables first, or unset block_source_ddl there.';
  END IF;
END
"""


def guard(connection: Connection, schema: str, columns: Mapping[int, Sequence[str]]) -> bool:
    """Guard exactly those columns, by the oids of their tables; returns whether the role may do so."""
    with connection.transaction():
        if not columns:
            _unguard(connection, schema)
            return True
        if not _may_guard(connection):
            return False
        _make(connection, schema)
        table = sql.Identifier(schema, _TABLE)
        for oid, names in columns.items():
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} SELECT c.oid, n.nspname, c.relname, a.attnum, a.attname, a.atttypid, a.atttypmod "
                    "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
                    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s AND a.attname = ANY(%s)"
                ).format(table),
                [oid, list(names)],
            )
        close_only(connection, schema, _TABLE, f"{_FUNCTION}()")
    return True


def _may_guard(connection: Connection) -> bool:
    try:
        with connection.transaction():  # managed servers let other roles than superusers create event triggers
            connection.execute(
                "CREATE FUNCTION pg_temp.millstream_probe() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
            )
            connection.execute(
                "CREATE EVENT TRIGGER millstream_probe ON sql_drop EXECUTE FUNCTION pg_temp.millstream_probe()"
            )
            connection.execute("DROP EVENT TRIGGER millstream_probe")
            connection.execute("DROP FUNCTION pg_temp.millstream_probe()")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _make(connection: Connection, schema: str) -> None:
    table, function = sql.Identifier(schema, _TABLE), sql.Identifier(schema, _FUNCTION)
    _unguard(connection, schema)
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (relation oid, schema_name name, table_name name, number smallint, name name, type oid, "
            "modifier integer)"
        ).format(table)
    )
    body = sql.SQL(_BODY).format(table=table).as_string(connection)
    connection.execute(
        sql.SQL(
            "CREATE FUNCTION {}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER "
            "SET search_path = pg_catalog, pg_temp AS {}"
        ).format(function, sql.Literal(body))
    )
    for event in _EVENTS:
        connection.execute(
            sql.SQL("CREATE EVENT TRIGGER {} ON {} EXECUTE FUNCTION {}()").format(
                sql.Identifier(f"{schema}_{event}"), sql.SQL(event), function
            )
        )


def _unguard(connection: Connection, schema: str) -> None:
    """Remove the guard; the event triggers are dropped with their function."""
    connection.execute(sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(sql.Identifier(schema, _FUNCTION)))
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, _TABLE)))
