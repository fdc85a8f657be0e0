"""Matches rows by their key's columns, which no trigger alters."""

from __future__ import annotations

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.reasons import Reason
from millstream.sinks.postgres import incoming_rows
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.incoming_rows import incoming_table
from millstream.sinks.postgres.search_path import users_path
from millstream.sinks.postgres.target import Target

# All of these run under the users' path: see `search_path`.
_MERGE = """
MERGE INTO ONLY {table} AS t USING {incoming} AS d ON {same}
WHEN MATCHED AND d.op OPERATOR(pg_catalog.=) 'D' THEN DELETE
{update}
WHEN NOT MATCHED AND d.op OPERATOR(pg_catalog.<>) 'D' THEN INSERT ({names}) VALUES ({incoming_columns})
"""
_UPDATE = "WHEN MATCHED AND {differs} THEN UPDATE SET {assignments}"
_LOCATE = """
UPDATE {incoming} AS d SET place = t.ctid,
  op = CASE WHEN d.op OPERATOR(pg_catalog.=) 'D' THEN 'D' WHEN {differs} THEN 'U' ELSE 'N' END
FROM ONLY {table} AS t WHERE {same}
"""
_IN_THE_WAY = """
SELECT FROM {incoming} AS d JOIN ONLY {table} AS t ON {same} WHERE d.op OPERATOR(pg_catalog.=) 'A' LIMIT 1
"""


def merge(connection: Connection, target: Target, null_keys: frozenset[str]) -> None:
    """Apply the incoming rows to the table, in one statement.

    Raises:
        MisfitError: as `locate`.
    """
    parts = _parts(target, null_keys)
    update = sql.SQL(_UPDATE).format(**parts) if target.others else sql.SQL("")
    with users_path(connection, target):
        _refuse_rows_in_the_way(connection, parts)
        connection.execute(sql.SQL(_MERGE).format(**parts, update=update))


def locate(connection: Connection, target: Target, null_keys: frozenset[str]) -> None:
    """Match the incoming rows with those of the table, and decide what to do with each; without a match, insert it.

    Raises:
        MisfitError: the table has a row with the key of a new one, which would be overwritten.
    """
    parts = _parts(target, null_keys)
    with users_path(connection, target):
        _refuse_rows_in_the_way(connection, parts)
        connection.execute(sql.SQL(_LOCATE).format(**parts))
    connection.execute(sql.SQL("UPDATE {} SET op = 'I' WHERE op IN ('P', 'A')").format(incoming_table()))


def _refuse_rows_in_the_way(connection: Connection, parts: dict[str, sql.Composable]) -> None:
    """Without this check, a new row with the key of another one would silently replace it."""
    if connection.execute(sql.SQL(_IN_THE_WAY).format(**parts)).fetchone() is not None:
        raise MisfitError(f"{Reason.SERVED_CHANGED}: the served table has a row that conflicts with a new one")


def _parts(target: Target, null_keys: frozenset[str]) -> dict[str, sql.Composable]:
    return {
        "table": target.relation,
        "incoming": incoming_table(),
        "same": incoming_rows.same_key(target, null_keys),
        "differs": incoming_rows.differs(target, with_key=False),
        "assignments": incoming_rows.assignments(target, with_key=False),
        "names": incoming_rows.names(target),
        "incoming_columns": incoming_rows.incoming_columns(target),
    }
