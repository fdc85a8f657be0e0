"""Matches rows by their place in the table, for results without a key and for keys that a BEFORE trigger may alter.

A table beside the ledger holds, for each row of the result, the text of its key or of the whole row as it was computed,
and the place (`ctid`) and transaction (`xmin`) of the served row; no place if a trigger skipped the row. So the served
table needs no extra column, and it does not matter how a trigger alters a row. A row that another session changed has
another place or transaction: this is detected, and the table is brought to the whole result.
"""

from __future__ import annotations

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.reasons import Reason
from millstream.sinks.postgres import incoming_rows
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.incoming_rows import exact_texts, incoming_table
from millstream.sinks.postgres.search_path import users_path
from millstream.sinks.postgres.target import Target, listed

_TABLE = "CREATE TABLE IF NOT EXISTS {ctids} (key text NOT NULL, place tid, seen xid)"
# Equal keys are numbered on both sides: which of several equal rows is deleted does not matter.
_LOCATE_BAG = """
UPDATE {incoming} AS d SET entry = p.entry, place = p.place, seen = p.seen
FROM (SELECT r.ctid AS entry, r.key, r.place, r.seen, row_number() OVER (PARTITION BY r.key) AS i FROM {ctids} AS r
      WHERE r.key IN (SELECT key FROM {incoming} WHERE op = 'D')) AS p
JOIN (SELECT n, row_number() OVER (PARTITION BY key) AS i, key FROM {incoming} WHERE op = 'D') AS m USING (key, i)
WHERE d.n = m.n
"""
_LOCATE_KEYED = """
UPDATE {incoming} AS d SET entry = r.ctid, place = r.place, seen = r.seen FROM {ctids} AS r WHERE r.key = d.key
"""
# This one and `_ADOPT` run under the users' path: see `search_path`.
_STRAY = """
SELECT FROM {incoming} AS d
WHERE CASE WHEN d.place IS NULL THEN d.entry IS NULL AND d.op OPERATOR(pg_catalog.=) 'D' AND {is_bag}
  ELSE NOT EXISTS (SELECT FROM ONLY {table} AS t
                   WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND t.xmin OPERATOR(pg_catalog.=) d.seen) END
LIMIT 1
"""
_ADOPT = "INSERT INTO {ctids} SELECT {text}, ctid, xmin FROM ONLY {table}"
_DECIDE = "UPDATE {incoming} AS d SET op = CASE WHEN place IS NULL THEN 'I' ELSE 'U' END WHERE op = 'P'"


def create_ctid_table(connection: Connection, ctids: sql.Identifier) -> bool:
    """Create the ctid table if it is missing; true if it was created, and must be closed to other roles."""
    if connection.execute("SELECT to_regclass(%s)", [ctids.as_string(connection)]).fetchone() != (None,):
        return False
    connection.execute(sql.SQL(_TABLE).format(ctids=ctids))
    # a hash index has no limit to the length of a key, and compares the key itself
    connection.execute(sql.SQL("CREATE INDEX ON {} USING hash (key)").format(ctids))
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(ctids))
    return True


def fill_keys(connection: Connection, target: Target) -> None:
    """Fill in the incoming rows' keys."""
    names = target.key if target.key is not None else [c.name for c in target.columns]
    text = incoming_rows.row_text(incoming_rows.incoming_column(target, n) for n in names)
    with exact_texts(connection):
        connection.execute(sql.SQL("UPDATE {} AS d SET key = {}").format(incoming_table(), text))


def record_existing(connection: Connection, target: Target, ctids: sql.Identifier) -> None:
    """Record the ctids of all rows of a keyed table, whose keys no trigger has altered so far."""
    text = incoming_rows.row_text(sql.Identifier(n) for n in target.key or ())
    connection.execute(sql.SQL("DELETE FROM {}").format(ctids))
    with exact_texts(connection), users_path(connection, target):
        connection.execute(sql.SQL(_ADOPT).format(ctids=ctids, text=text, table=target.relation))
    _analyze(connection, ctids)


def locate(connection: Connection, target: Target, ctids: sql.Identifier) -> None:
    """Match the incoming rows with recorded ones, and decide what to do with each.

    Raises:
        MisfitError: a row to delete or change is not where it was recorded.
    """
    fill_keys(connection, target)
    parts = {
        "incoming": incoming_table(),
        "ctids": ctids,
        "table": target.relation,
        "is_bag": sql.Literal(not target.is_keyed),
    }
    connection.execute(sql.SQL(_LOCATE_KEYED if target.is_keyed else _LOCATE_BAG).format(**parts))
    with users_path(connection, target):
        is_stray = connection.execute(sql.SQL(_STRAY).format(**parts)).fetchone() is not None
    if is_stray:
        raise MisfitError(f"{Reason.SERVED_CHANGED}: rows of the served table are not where they were written")
    connection.execute(sql.SQL(_DECIDE).format(**parts))


def record(connection: Connection, ctids: sql.Identifier) -> None:
    """Record the ctids of the incoming rows after they were written."""
    parts = {"ctids": ctids, "incoming": incoming_table()}
    for statement in (
        "DELETE FROM {ctids} AS r USING {incoming} AS d WHERE r.ctid = d.entry AND d.op IN ('D', 'I')",
        "UPDATE {ctids} AS r SET place = d.place, seen = d.seen FROM {incoming} AS d "
        "WHERE r.ctid = d.entry AND d.op = 'U'",
        "INSERT INTO {ctids} SELECT d.key, d.place, d.seen FROM {incoming} AS d WHERE d.op = 'I'",
    ):
        connection.execute(sql.SQL(statement).format(**parts))


def record_all(connection: Connection, ctids: sql.Identifier) -> None:
    """Record the ctids of all rows of the table, each of which was incoming."""
    connection.execute(sql.SQL("DELETE FROM {}").format(ctids))
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT d.key, d.place, d.seen FROM {} AS d WHERE d.op <> 'D'").format(
            ctids, listed([sql.Identifier(n) for n in ("key", "place", "seen")]), incoming_table()
        )
    )
    _analyze(connection, ctids)


def _analyze(connection: Connection, ctids: sql.Identifier) -> None:
    """Give the planner statistics: without them it reads all keys to find a few."""
    connection.execute(sql.SQL("ANALYZE {}").format(ctids))
