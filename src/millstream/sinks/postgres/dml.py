"""The explicit statements of a refresh: DELETE, UPDATE, INSERT, in this order, on rows that were located before.

Each fires users' triggers as a user's own statement would, with the right TG_OP, OLD and NEW. A statement without rows
to change is not run, so that no statement trigger fires for it. They run under the users' path: see `search_path`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.reasons import Reason
from millstream.sinks.postgres import incoming_rows
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.incoming_rows import incoming_table
from millstream.sinks.postgres.search_path import users_path
from millstream.sinks.postgres.target import Target

_PLAIN_INSERT = """
INSERT INTO {table} ({names}) SELECT {incoming_columns} FROM {incoming} AS d
WHERE d.op OPERATOR(pg_catalog.=) 'I' ORDER BY d.n
"""
_PLAIN_UPDATE = """
UPDATE ONLY {table} AS t SET {assignments} FROM {incoming} AS d
WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND d.op OPERATOR(pg_catalog.=) 'U'
"""
# Returns which incoming row each inserted one was: a trigger may have altered it beyond recognition or skipped it. The
# subquery yields rows one by one, and each is inserted and returned before the next, so the setting identifies it.
_INSERT = """
WITH made AS (
  INSERT INTO {table} ({names})
  SELECT {incoming_columns}
  FROM (SELECT * FROM {incoming} WHERE op OPERATOR(pg_catalog.=) 'I' ORDER BY n OFFSET 0) AS d
  WHERE pg_catalog.set_config('millstream.row', d.n::pg_catalog.text, true) IS NOT NULL
  RETURNING pg_catalog.current_setting('millstream.row')::pg_catalog.int8 AS n, ctid AS place, xmin AS seen
), noted AS (
  UPDATE {incoming} AS d SET place = made.place, seen = made.seen FROM made
  WHERE made.n OPERATOR(pg_catalog.=) d.n RETURNING 1
) SELECT pg_catalog.count(*) FROM noted
"""
_UPDATE = """
WITH made AS (
  UPDATE ONLY {table} AS t SET {assignments} FROM {incoming} AS d
  WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND d.op OPERATOR(pg_catalog.=) 'U'
  RETURNING d.n, t.ctid AS place, t.xmin AS seen
), noted AS (
  UPDATE {incoming} AS d SET place = made.place, seen = made.seen FROM made
  WHERE made.n OPERATOR(pg_catalog.=) d.n RETURNING 1
) SELECT pg_catalog.count(*) FROM noted
"""
_DELETE = """
DELETE FROM ONLY {table} AS t USING {incoming} AS d
WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND d.op OPERATOR(pg_catalog.=) 'D'
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows that were changed; triggers may have prevented some."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def _planned(connection: Connection) -> dict[str, int]:
    """How many incoming rows there are of each op; deletions count only if their row was found."""
    rows = connection.execute(
        sql.SQL("SELECT op::text, count(*) FROM {} WHERE op <> 'D' OR place IS NOT NULL GROUP BY op").format(
            incoming_table()
        )
    ).fetchall()
    return {str(op): int(count) for op, count in rows}


def run_statements(connection: Connection, target: Target, *, by_ctid: bool, may_veto: bool) -> Counts:
    """Run the statements; with `by_ctid` the new ctids are recorded, and an UPDATE sets the key's columns too.

    Raises:
        MisfitError: another session changed the rows meanwhile; not raised if a trigger may have vetoed changes.
    """
    wanted = _planned(connection)
    parts = {
        "table": target.relation,
        "incoming": incoming_table(),
        "names": incoming_rows.names(target),
        "incoming_columns": incoming_rows.incoming_columns(target),
        "assignments": incoming_rows.assignments(target, with_key=by_ctid),
    }
    done: dict[str, int] = {}
    with users_path(connection, target):
        if wanted.get("D"):
            done["D"] = connection.execute(sql.SQL(_DELETE).format(**parts)).rowcount
        if wanted.get("U"):
            done["U"] = _count(connection, sql.SQL(_UPDATE if by_ctid else _PLAIN_UPDATE).format(**parts))
        if wanted.get("I"):
            done["I"] = _count(connection, sql.SQL(_INSERT if by_ctid else _PLAIN_INSERT).format(**parts))
    for op, count in done.items():
        if count != wanted[op] and not may_veto:
            raise MisfitError(f"{Reason.SERVED_CHANGED}: {wanted[op]} rows should have changed, and {count} did")
    return Counts(done.get("I", 0), done.get("U", 0), done.get("D", 0))


def _count(connection: Connection, statement: sql.Composed) -> int:
    done = connection.execute(statement)
    row = done.fetchone() if done.description is not None else (done.rowcount,)
    assert row is not None
    return int(row[0])
