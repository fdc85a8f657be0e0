"""Rows matched by their key's columns, which no trigger alters."""

from __future__ import annotations

from psycopg import sql

from millstream.sinks.postgres import staging
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.paths import users_path
from millstream.sinks.postgres.staging import STAGED
from millstream.sinks.postgres.target import Connection, Target

# All of these run under the users' path: see `paths`.
_MERGE = """
MERGE INTO ONLY {table} AS t USING {stage} AS d ON {same}
WHEN MATCHED AND d.op OPERATOR(pg_catalog.=) 'D' THEN DELETE
{update}
WHEN NOT MATCHED AND d.op OPERATOR(pg_catalog.<>) 'D' THEN INSERT ({names}) VALUES ({staged})
"""
_UPDATE = "WHEN MATCHED AND {differs} THEN UPDATE SET {assignments}"
_LOCATE = """
UPDATE {stage} AS d SET place = t.ctid,
  op = CASE WHEN d.op OPERATOR(pg_catalog.=) 'D' THEN 'D' WHEN {differs} THEN 'U' ELSE 'N' END
FROM ONLY {table} AS t WHERE {same}
"""
_IN_THE_WAY = """
SELECT FROM {stage} AS d JOIN ONLY {table} AS t ON {same} WHERE d.op OPERATOR(pg_catalog.=) 'A' LIMIT 1
"""


def merge(connection: Connection, target: Target, null_keys: frozenset[str]) -> None:
    """Bring the table to what is staged, in one statement.

    Raises:
        MisfitError: as `locate`.
    """
    parts = _parts(target, null_keys)
    update = sql.SQL(_UPDATE).format(**parts) if target.others else sql.SQL("")
    with users_path(connection, target):
        _refuse_rows_in_the_way(connection, parts)
        connection.execute(sql.SQL(_MERGE).format(**parts, update=update))


def locate(connection: Connection, target: Target, null_keys: frozenset[str]) -> None:
    """Find the staged rows' partners, and so what is to be done with each: no partner, an insert.

    Raises:
        MisfitError: the table has a row with the key of a new one, which would be overwritten.
    """
    parts = _parts(target, null_keys)
    with users_path(connection, target):
        _refuse_rows_in_the_way(connection, parts)
        connection.execute(sql.SQL(_LOCATE).format(**parts))
    connection.execute(sql.SQL("UPDATE {} SET op = 'I' WHERE op IN ('P', 'A')").format(STAGED))


def _refuse_rows_in_the_way(connection: Connection, parts: dict[str, sql.Composable]) -> None:
    """Of a key that is none any more, the second row would take the place of the first, and nobody would notice."""
    if connection.execute(sql.SQL(_IN_THE_WAY).format(**parts)).fetchone() is not None:
        raise MisfitError("SERVED_CHANGED: the served table has a row that stands in the way")


def _parts(target: Target, null_keys: frozenset[str]) -> dict[str, sql.Composable]:
    return {
        "table": target.relation,
        "stage": STAGED,
        "same": staging.same_key(target, null_keys),
        "differs": staging.differs(target, with_key=False),
        "assignments": staging.assignments(target, with_key=False),
        "names": staging.names(target),
        "staged": staging.staged(target),
    }
