"""Bringing a table to a result as a whole: by the difference, so that equal rows stay as they are.

TRUNCATE would lock readers out and fire no row of a DELETE; a second table would lose users' indexes, views, grants,
publications and triggers. So what differs is deleted, updated and inserted, in one transaction: a reader sees the old
contents until it commits, and the new ones afterwards.
"""

from __future__ import annotations

from psycopg import sql

from millstream.sinks.postgres import staging
from millstream.sinks.postgres.paths import users_path
from millstream.sinks.postgres.staging import STAGED, exact_texts
from millstream.sinks.postgres.target import Connection, Target

# Those that read the table run under the users' path: see `paths`.
# Equal rows of a bag are numbered on both sides. Rows of the table without a partner are staged as deletions.
_MATCH = """
WITH here AS (
  SELECT ctid AS place, xmin AS seen, {here} AS key, pg_catalog.row_number() OVER (PARTITION BY {here}) AS i
  FROM ONLY {table}
), wanted AS (
  SELECT n, {wanted} AS key, pg_catalog.row_number() OVER (PARTITION BY {wanted}) AS i FROM {stage} AS d
), matched AS (
  SELECT wanted.n, here.place, here.seen FROM wanted FULL JOIN here
  ON here.key OPERATOR(pg_catalog.=) wanted.key AND here.i OPERATOR(pg_catalog.=) wanted.i
), superfluous AS (
  INSERT INTO {stage} (op, place) SELECT 'D', place FROM matched WHERE n IS NULL
)
UPDATE {stage} AS d SET place = m.place, seen = m.seen FROM matched AS m
WHERE m.n OPERATOR(pg_catalog.=) d.n AND m.place IS NOT NULL
"""
_DECIDE = """
UPDATE {stage} AS d SET op = CASE WHEN d.place IS NULL THEN 'I' ELSE 'N' END WHERE d.op = 'P'
"""
_CHANGED = """
UPDATE {stage} AS d SET op = 'U' FROM ONLY {table} AS t
WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND d.op OPERATOR(pg_catalog.=) 'N' AND {differs}
"""


def locate(connection: Connection, target: Target) -> None:
    """Find out how the table differs from what is staged, which is all of the result."""
    with users_path(connection, target):
        is_empty = connection.execute(sql.SQL("SELECT FROM ONLY {} LIMIT 1").format(target.relation)).fetchone() is None
    if is_empty:
        connection.execute(sql.SQL("UPDATE {} SET op = 'I'").format(STAGED))
        return
    names = target.key if target.key is not None else [c.name for c in target.columns]
    parts = {
        "here": staging.row_text(sql.Identifier(n) for n in names),
        "wanted": staging.row_text(staging.staged_column(target, n) for n in names),
        "table": target.relation,
        "stage": STAGED,
        "differs": staging.differs(target, with_key=False),
    }
    with exact_texts(connection), users_path(connection, target):
        connection.execute(sql.SQL(_MATCH).format(**parts))
    connection.execute(sql.SQL(_DECIDE).format(**parts))
    if target.is_keyed and target.others:
        with users_path(connection, target):
            connection.execute(sql.SQL(_CHANGED).format(**parts))
