"""The SQL of a table's buffer: its table, its trigger functions and its triggers.

A trigger that fails would fail the application's transaction, so DDL on the source, which capture detects only at the
next tick, must not break the functions:

- a column that was dropped or renamed is found one scope further out, in `missing`, and is NULL;
- a column that has another type now becomes NULL too: PostgreSQL chooses between the overloads of `fitting` by the type
  of their arguments, and inlines either one, so that the check costs nothing per row;
- a session plans a function's statement once, and again when a table that it names was altered. A row trigger's
  statement names no table, so it contains the tables as constants, by their oids, which outlive every name;
- buffers have types without modifiers, so that a `varchar(20)` that was a `varchar(10)` fits;
- a buffer has PostgreSQL's own types only, and the text of all others (`kept_columns`), so that these can be dropped.

All of these change the source's shape, so its mirror is read again.

The functions have the rights of the role that captures, so no value is ever cast: a cast might be the table owner's own
function, or fail. A text is what the type's output function writes, which only a superuser can have created.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from millstream.postgres.driver import sql

ORDER, TRANSACTION, SIGN, LEAF = "__ms_lsn", "__ms_xid", "__ms_w", "__ms_leaf"
"""A buffer's own columns. The sign is 0 for a TRUNCATE, and then the leaf is NULL if all of the table was truncated."""

_OWN = (ORDER, TRANSACTION, SIGN)

_SEARCH_PATH = "pg_catalog, pg_temp"  # if it were not named, pg_temp would be searched first

# Old images before new ones, so that the rows of a statement are in their natural order.
_REMOVED, _ADDED = (-1, "old", "removed"), (1, "new", "added")


class Event(StrEnum):
    """What a trigger is for; also a part of its name."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    TRUNCATE_PART = "truncate_part"
    """TRUNCATE of one partition or child: its rows are gone, and only the table itself shows which remain."""
    LOCK = "lock"
    """Does nothing. Creating it again takes the lock that keeps writers out, which LOCK TABLE would refuse to a role
    that may only SELECT and TRIGGER."""


_IMAGES = {Event.INSERT: (_ADDED,), Event.UPDATE: (_REMOVED, _ADDED), Event.DELETE: (_REMOVED,)}


@dataclass(frozen=True, slots=True)
class BufferColumn:
    """A column of a buffer.

    Args:
        type: a name in pg_catalog.
        by_output: keep the value's text instead of the value.
        settings: what the text depends on: it must be as in our own sessions, regardless of the writer's settings.
    """

    name: str
    type: str
    by_output: bool = False
    settings: tuple[str, ...] = ()

    @property
    def definition(self) -> sql.Composed:
        """For CREATE TABLE and ADD COLUMN."""
        return sql.SQL("{} {}").format(sql.Identifier(self.name), _type(self.type))

    def captured(self, schema: str) -> sql.Composed:
        """The column's value if the column is still what it was, else NULL."""
        column = sql.Identifier(self.name)
        if self.by_output:
            return sql.SQL("CASE WHEN {0} IS NOT NULL THEN pg_catalog.concat({0}) END").format(column)
        return sql.SQL("{}({}, 0, 0)").format(sql.Identifier(schema, fitting_name(self.type)), column)

    @property
    def null(self) -> sql.Composed:
        """NULL of its type."""
        return _null(self.type)


def fitting_name(type_: str) -> str:
    """The name of the function that returns a value of one type, or of a domain over it, and NULL for any other."""
    return f"fitting_{type_}"


def fitting_statements(schema: str, type_: str) -> list[sql.Composed]:
    """The two overloads of that function, of which PostgreSQL chooses one when a statement is parsed.

    They are called as `fitting(value, 0, 0)`. The one that has more arguments of exactly the given types wins, where a
    domain counts as the type behind it: that is the first for a value that fits, and neither for any other. Then the
    one wins that has more arguments of their category's preferred type: the second has two, the first at most one. So
    the first is never reached by a cast, whether there is one or not.
    """
    overloads = [
        (_type(type_), _type("int8"), sql.SQL("SELECT $1")),
        (_type("anyelement"), _type("float8"), sql.SQL("SELECT {}").format(_null(type_))),
    ]
    statements: list[sql.Composed] = []
    for value, number, body in overloads:
        function = sql.SQL("{0}({1}, {2}, {2})").format(sql.Identifier(schema, fitting_name(type_)), value, number)
        statements += [
            sql.SQL("CREATE OR REPLACE FUNCTION {} RETURNS {} LANGUAGE sql IMMUTABLE AS {}").format(
                function, _type(type_), sql.Literal(body.as_string())
            ),
            sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC").format(function),
        ]
    return statements


def _type(name: str) -> sql.Identifier:
    return sql.Identifier("pg_catalog", name)


def _null(type_: str) -> sql.Composed:
    return sql.SQL("NULL::{}").format(_type(type_))


def buffer_name(oid: int) -> str:
    """The name of the buffer of a source."""
    return f"changes_{oid}"


def function_name(event: Event, oid: int) -> str:
    """The name of a trigger function of a source."""
    return f"{event}_{oid}"


def trigger_name(schema: str, event: Event, oid: int) -> str:
    """The name of a trigger of a source: a table may have those of two lakes, and of the table it is a part of."""
    return f"{schema}_{event}_{oid}"


def buffer_statements(schema: str, oid: int, columns: Sequence[BufferColumn], by_row: bool) -> list[sql.Composed]:
    """The buffer's table.

    If there is a TRUNCATE, the order of rows says which came before it and which after. The end of the WAL gives the
    order: each row that is written moves it on, and it costs a fraction of what a sequence costs. There is no index: a
    read takes nearly all of a buffer, because consumed rows are deleted. Without a replica identity they could not be
    deleted if a publication includes all tables; a full one costs writers nothing.
    """
    buffer = sql.Identifier(schema, buffer_name(oid))
    own = [
        sql.SQL("{} pg_catalog.pg_lsn NOT NULL").format(sql.Identifier(ORDER)),
        sql.SQL("{} pg_catalog.xid8 NOT NULL").format(sql.Identifier(TRANSACTION)),
        sql.SQL("{} pg_catalog.int2 NOT NULL").format(sql.Identifier(SIGN)),
    ]
    if by_row:
        own.append(sql.SQL("{} pg_catalog.oid").format(sql.Identifier(LEAF)))
    return [
        sql.SQL(
            "CREATE TABLE {} ({}) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, "
            "autovacuum_analyze_scale_factor = 1)"
        ).format(buffer, sql.SQL(", ").join([*own, *(c.definition for c in columns)])),
        sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(buffer),
    ]


def function_statements(
    schema: str, oid: int, event: Event, columns: Sequence[BufferColumn], by_row: bool, altered: Sequence[int]
) -> list[sql.Composed]:
    """A trigger function, which no other role may put on its own tables.

    Args:
        altered: the oids of the tables that may be altered, each by itself, and whose rows the function gets.
    """
    function = sql.SQL("{}()").format(sql.Identifier(schema, function_name(event, oid)))
    body = sql.SQL("#variable_conflict use_column\nBEGIN\n{}  RETURN NULL;\nEND").format(
        _capture(schema, oid, event, columns, by_row, altered)
    )
    settings = sorted({setting for c in columns for setting in c.settings} if event in _IMAGES else ())
    return [
        sql.SQL(
            "CREATE OR REPLACE FUNCTION {} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
            "SET search_path = {} {} AS {}"
        ).format(
            function,
            sql.SQL(_SEARCH_PATH),
            # with the values of our session; each costs two microseconds per statement
            sql.SQL(" ").join(sql.SQL("SET {} FROM CURRENT").format(sql.Identifier(s)) for s in settings),
            sql.Literal(body.as_string()),
        ),
        sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC").format(function),
    ]


def _capture(
    schema: str, oid: int, event: Event, columns: Sequence[BufferColumn], by_row: bool, altered: Sequence[int]
) -> sql.Composable:
    buffer = sql.Identifier(schema, buffer_name(oid))
    if event is Event.LOCK:
        return sql.SQL("")
    if event is Event.TRUNCATE:
        return _insert(buffer, _OWN, sql.SQL("SELECT {}, {}, {}").format(*_own_values(0)))
    # A column of the source may be called tg_relid: the variable is qualified with its function.
    leaf = sql.Identifier(function_name(event, oid), "tg_relid")
    if event is Event.TRUNCATE_PART:
        return _insert(buffer, [*_OWN, LEAF], sql.SQL("SELECT {}, {}, {}, {}").format(*_own_values(0), leaf))
    images = [
        sql.SQL("SELECT {} FROM {}").format(
            # own values in each image: above both images they would be a plan step of their own, for every row
            sql.SQL(", ").join(
                [*_own_values(sign), *([leaf] if by_row else []), *(c.captured(schema) for c in columns)]
            ),
            sql.SQL(f"(SELECT {row}.*) AS {rows}" if by_row else rows),
        )
        for sign, row, rows in _IMAGES[event]
    ]
    missing = [sql.SQL("{} AS {}").format(c.null, sql.Identifier(c.name)) for c in columns]
    selected = sql.SQL(
        "SELECT image.* FROM (SELECT {missing}) AS missing\n  CROSS JOIN LATERAL ({images}) AS image"
    ).format(missing=sql.SQL(", ").join(missing), images=sql.SQL("\n    UNION ALL ").join(images))
    if by_row:  # always true, so not in the plan; a statement trigger's plan depends on its table already
        watched = [sql.SQL("{}::pg_catalog.regclass IS NOT NULL").format(sql.Literal(str(table))) for table in altered]
        selected += sql.SQL("\n  WHERE {}").format(sql.SQL(" AND ").join(watched))
    return _insert(buffer, [*_OWN, *([LEAF] if by_row else []), *(c.name for c in columns)], selected)


def _insert(buffer: sql.Identifier, columns: Sequence[str], selected: sql.Composable) -> sql.Composed:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("  INSERT INTO {} ({})\n  {};\n").format(buffer, names, selected)


def _own_values(sign: int) -> list[sql.SQL]:
    """The values of a buffer's own columns, without the leaf."""
    now = "pg_catalog.pg_current_wal_insert_lsn()", "pg_catalog.pg_current_xact_id()"
    return [*map(sql.SQL, now), sql.SQL(f"{sign}::pg_catalog.int2")]


def create_trigger(schema: str, oid: int, event: Event, table: sql.Identifier, by_row: bool) -> sql.Composed:
    """A trigger of a source, on the source itself or on one of its leaves."""
    reads = "FOR EACH STATEMENT"
    if event in _IMAGES:
        tables = " ".join(f"{row.upper()} TABLE AS {rows}" for _, row, rows in _IMAGES[event])
        reads = "FOR EACH ROW" if by_row else f"REFERENCING {tables} FOR EACH STATEMENT"
    fires = event.upper() if event in _IMAGES else "TRUNCATE"
    return sql.SQL(f"CREATE OR REPLACE TRIGGER {{}} AFTER {fires} ON {{}} {reads} EXECUTE FUNCTION {{}}()").format(
        sql.Identifier(trigger_name(schema, event, oid)), table, sql.Identifier(schema, function_name(event, oid))
    )


# The caller may have more rights than the role that captures: so names mean PostgreSQL's own objects, and only a schema
# that this role owns and whose comment names this lake is dropped, as this role.
_UNINSTALL = """
DECLARE
  keeper CONSTANT pg_catalog.text := coalesce({role}, current_user);
  caller_role CONSTANT pg_catalog.text := pg_catalog.current_setting('role');
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF keeper <> current_user THEN
    EXECUTE format('SET LOCAL ROLE %I', keeper);
  END IF;
  IF EXISTS (SELECT FROM pg_namespace WHERE nspname = {name} AND pg_get_userbyid(nspowner) = keeper
             AND obj_description(oid, 'pg_namespace') = {mark}) THEN
    DROP SCHEMA {schema} CASCADE;
  ELSIF EXISTS (SELECT FROM pg_namespace WHERE nspname = {name}) THEN
    RAISE WARNING 'the schema % belongs to another lake or role, and is not dropped', {name};
  END IF;
  PERFORM set_config('role', caller_role, true);
END
"""


def uninstall_sql(schema: str, mark: str, role: str | None = None) -> str:
    """A script that removes every object of capture from a database, without millstream.

    The role that captures or a superuser may run it. The triggers are on other roles' tables, and are dropped with
    their functions.

    Args:
        mark: the comment on the schema, which names its lake.
        role: the one that captures, if another one may run the script.
    """
    body = sql.SQL(_UNINSTALL).format(
        schema=sql.Identifier(schema), name=sql.Literal(schema), mark=sql.Literal(mark), role=sql.Literal(role)
    )
    drop = sql.SQL("DO {};").format(sql.Literal(body.as_string())).as_string()
    return (
        "-- Removes everything that millstream's capture has created in this database: the triggers on the captured\n"
        "-- tables, their functions, and the buffers. It waits for transactions on these tables for 10 seconds;\n"
        "-- if that was too short, nothing has changed: run it again.\n"
        "SET lock_timeout = '10s';\n"
        f"{drop}\n"
        "RESET lock_timeout;\n"
    )
