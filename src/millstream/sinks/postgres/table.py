"""The served table itself: creates it with the right types, key, owner and grants, finds it, and drops it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import errors, sql
from millstream.postgres.locked_names import hold, lock, require
from millstream.sinks.postgres.keys import declare_key
from millstream.sinks.postgres.locks import lock_out_readers
from millstream.sinks.postgres.target import Target, listed

_FOUND = """
SELECT c.oid::bigint, coalesce(pg_relation_filenode(c.oid), 0)::bigint, c.relkind = 'r',
       pg_get_userbyid(c.relowner), c.relhasrules,
       ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, a.atttypmod)] FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_WRITES = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")  # a trigger would run with our rights
_COMMENT = "kept up to date by millstream, which alone may write to it"
MERGE = 150_000
"""The first version of PostgreSQL that has MERGE."""


@dataclass(frozen=True, slots=True)
class Found:
    """A relation with the served table's name, as it is now."""

    oid: int
    filenode: int
    is_table: bool
    owner: str
    has_rules: bool
    columns: dict[str, str]


def find_table(connection: Connection, target: Target) -> Found | None:
    """The relation with the served table's name, or None."""
    query = _FOUND + " WHERE n.nspname = %s AND c.relname = %s"
    row = connection.execute(query, [target.schema, target.table]).fetchone()
    if row is None:
        return None
    oid, filenode, is_table, owner, has_rules, columns = row
    return Found(oid, filenode, is_table, owner, has_rules, dict(columns))


def name_of(connection: Connection, oid: int) -> tuple[str, str] | None:
    """The schema and name a table has now, or None if it was dropped."""
    row = connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = %s::oid AND c.relkind = 'r'",
        [oid],
    ).fetchone()
    return (row[0], row[1]) if row is not None else None


def is_ours(connection: Connection, target: Target, found: Found) -> bool:
    """Whether a table looks like one that `create_table` has made."""
    if found.owner != (target.owner or _current_user(connection)):
        return False
    row = connection.execute("SELECT obj_description(%s::oid, 'pg_class')", [found.oid]).fetchone()
    return row == (_COMMENT,)


def misfit(target: Target, found: Found, given: Mapping[str, str]) -> str | None:
    """How a table's columns were altered so that they no longer fit the result; None if they fit.

    Columns that users added do no harm, and columns that still have the type they were `given` can be altered.
    """
    for column in target.columns:
        is_type, was_type = found.columns.get(column.name), given.get(column.name, column.pg_type)
        if is_type is None:
            return f"it has no column {column.name}"
        if is_type not in {column.pg_type, was_type}:
            return f"its column {column.name} is {is_type} and should be {was_type}"
    return None if found.is_table else "it is not a plain table"


def refuse_taken(connection: Connection, target: Target) -> None:
    """Refuse a name that is already taken in the database, and a schema that does not exist.

    Raises:
        MillstreamError: NAME_TAKEN, UNKNOWN_TABLE.
    """
    if find_table(connection, target) is not None:
        raise MillstreamError(
            Code.NAME_TAKEN, f"the database already has a relation {target.name}", hint="serve to another name"
        )
    if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [target.schema]).fetchone() is None:
        raise MillstreamError(
            Code.UNKNOWN_TABLE,
            f"the database has no schema {target.schema}",
            hint=f"CREATE SCHEMA {target.schema}, or serve into another one",
        )


def create_table(connection: Connection, target: Target) -> Found:
    """Create the table, empty."""
    columns = [sql.SQL("{} {}").format(c.identifier, c.type_sql) for c in target.columns]
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(target.relation, listed(columns)))
    declare_key(connection, target)
    connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(target.relation, sql.Literal(_COMMENT)))
    made = find_table(connection, target)
    assert made is not None
    grant(connection, target, made.oid)
    found = find_table(connection, target)
    assert found is not None
    return found


def grant(connection: Connection, target: Target, oid: int) -> None:
    """Set the table's owner, let the chosen roles read it, and revoke other roles' privileges to write it.

    Raises:
        MovedError: its name does not refer to the table of that OID.
    """
    me = _current_user(connection)
    hold(connection, target.named(oid))
    rows = connection.execute(
        "SELECT DISTINCT a.grantee, pg_get_userbyid(a.grantee) FROM pg_class c, aclexplode(c.relacl) a "
        "WHERE c.oid = %s::oid AND a.grantee <> c.relowner AND a.privilege_type = ANY(%s)",
        [oid, list(_WRITES)],
    ).fetchall()
    for grantee, name in rows:
        if name != me:
            role = sql.SQL("PUBLIC") if grantee == 0 else sql.Identifier(name)
            connection.execute(
                sql.SQL("REVOKE {} ON {} FROM {}").format(
                    sql.SQL(", ").join(map(sql.SQL, _WRITES)), target.relation, role
                )
            )
    if target.owner is not None and target.owner != me:
        owner = sql.Identifier(target.owner)
        lock_out_readers(connection, target.named(oid))
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(target.relation, owner))
        mine = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON {} TO {}")
        connection.execute(mine.format(target.relation, sql.Identifier(me)))
    for role_name in target.grants:
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(target.relation, _role(role_name)))
    require(connection, [target.named(oid)])  # no lock protects the name of its schema; an error undoes all of it


def drop_table(connection: Connection, target: Target, oid: int, *, cascade: bool) -> None:
    """Drop the table, and with `cascade` the views that read it.

    Raises:
        MillstreamError: DEPENDENTS_EXIST.
        MovedError: its name does not refer to the table of that OID.
    """
    word = sql.SQL("CASCADE" if cascade else "RESTRICT")
    lock(connection, target.named(oid), "ACCESS EXCLUSIVE")
    try:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {} {}").format(target.relation, word))
    except errors.DependentObjectsStillExist as e:
        raise MillstreamError(
            Code.DEPENDENTS_EXIST,
            f"other objects of the database depend on {target.name}: {(e.diag.message_detail or '').strip()}",
            hint="drop them there first, or drop with CASCADE",
        ) from e


def _current_user(connection: Connection) -> str:
    row = connection.execute("SELECT current_user").fetchone()
    assert row is not None
    return str(row[0])


def _role(name: str) -> sql.Composable:
    return sql.SQL("PUBLIC") if name.upper() == "PUBLIC" else sql.Identifier(name)
