"""Brings a table to the whole result by writing only the rows that differ: equal rows stay as they are.

TRUNCATE would lock readers out and fire no DELETE triggers; a second table would lose users' indexes, views, grants,
publications and triggers. So the rows that differ are deleted, updated and inserted in one transaction: a reader sees
the old contents until it commits, and the new ones afterwards.
"""

from __future__ import annotations

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres import incoming_rows
from millstream.sinks.postgres.incoming_rows import exact_texts, incoming_table
from millstream.sinks.postgres.search_path import users_path
from millstream.sinks.postgres.target import Target

# The statements that read the table run under the users' path: see `search_path`.
# Equal rows of a bag are numbered on both sides. Rows of the table without a match become incoming deletions.
_MATCH = """
WITH here AS (
  SELECT ctid AS place, xmin AS seen, {here} AS key, pg_catalog.row_number() OVER (PARTITION BY {here}) AS i
  FROM ONLY {table}
), wanted AS (
  SELECT n, {wanted} AS key, pg_catalog.row_number() OVER (PARTITION BY {wanted}) AS i FROM {incoming} AS d
), matched AS (
  SELECT wanted.n, here.place, here.seen FROM wanted FULL JOIN here
  ON here.key OPERATOR(pg_catalog.=) wanted.key AND here.i OPERATOR(pg_catalog.=) wanted.i
), superfluous AS (
  INSERT INTO {incoming} (op, place) SELECT 'D', place FROM matched WHERE n IS NULL
)
UPDATE {incoming} AS d SET place = m.place, seen = m.seen FROM matched AS m
WHERE m.n OPERATOR(pg_catalog.=) d.n AND m.place IS NOT NULL
"""
_DECIDE = """
UPDATE {incoming} AS d SET op = CASE WHEN d.place IS NULL THEN 'I' ELSE 'N' END WHERE d.op = 'P'
"""
_CHANGED = """
UPDATE {incoming} AS d SET op = 'U' FROM ONLY {table} AS t
WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND d.op OPERATOR(pg_catalog.=) 'N' AND {differs}
"""


def locate(connection: Connection, target: Target) -> None:
    """Find out how the table differs from the incoming rows, which are the whole result."""
    with users_path(connection, target):
        is_empty = connection.execute(sql.SQL("SELECT FROM ONLY {} LIMIT 1").format(target.relation)).fetchone() is None
    if is_empty:
        connection.execute(sql.SQL("UPDATE {} SET op = 'I'").format(incoming_table()))
        return
    names = target.key if target.key is not None else [c.name for c in target.columns]
    parts = {
        "here": incoming_rows.row_text(sql.Identifier(n) for n in names),
        "wanted": incoming_rows.row_text(incoming_rows.incoming_column(target, n) for n in names),
        "table": target.relation,
        "incoming": incoming_table(),
        "differs": incoming_rows.differs(target, with_key=False),
    }
    with exact_texts(connection), users_path(connection, target):
        connection.execute(sql.SQL(_MATCH).format(**parts))
    connection.execute(sql.SQL(_DECIDE).format(**parts))
    if target.is_keyed and target.others:
        with users_path(connection, target):
            connection.execute(sql.SQL(_CHANGED).format(**parts))
