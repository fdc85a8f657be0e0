"""Rows matched by where they lie, for results without a key and for keys that a BEFORE trigger may alter.

A table beside the bookkeeping holds, for each row of the result, its key's or whole row's text as it was meant to be,
and the place (`ctid`) and transaction (`xmin`) of the row that stands for it; no place if a trigger left it out. So the
served table needs no column for it, and what a trigger makes of a row does not matter. A row that others changed has
another place or transaction: it is noticed, and the table is brought to the result as a whole.
"""

from __future__ import annotations

from psycopg import sql

from millstream.sinks.postgres import staging
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.paths import users_path
from millstream.sinks.postgres.staging import STAGED, exact_texts
from millstream.sinks.postgres.target import Connection, Target, listed

_TABLE = "CREATE TABLE IF NOT EXISTS {places} (key text NOT NULL, place tid, seen xid)"
# Equal keys are numbered on both sides: which of several equal rows goes does not matter.
_LOCATE_BAG = """
UPDATE {stage} AS d SET entry = p.entry, place = p.place, seen = p.seen
FROM (SELECT r.ctid AS entry, r.key, r.place, r.seen, row_number() OVER (PARTITION BY r.key) AS i FROM {places} AS r
      WHERE r.key IN (SELECT key FROM {stage} WHERE op = 'D')) AS p
JOIN (SELECT n, row_number() OVER (PARTITION BY key) AS i, key FROM {stage} WHERE op = 'D') AS m USING (key, i)
WHERE d.n = m.n
"""
_LOCATE_KEYED = """
UPDATE {stage} AS d SET entry = r.ctid, place = r.place, seen = r.seen FROM {places} AS r WHERE r.key = d.key
"""
# This one and `_ADOPT` run under the users' path: see `paths`.
_STRAY = """
SELECT FROM {stage} AS d
WHERE CASE WHEN d.place IS NULL THEN d.entry IS NULL AND d.op OPERATOR(pg_catalog.=) 'D' AND {is_bag}
  ELSE NOT EXISTS (SELECT FROM ONLY {table} AS t
                   WHERE t.ctid OPERATOR(pg_catalog.=) d.place AND t.xmin OPERATOR(pg_catalog.=) d.seen) END
LIMIT 1
"""
_ADOPT = "INSERT INTO {places} SELECT {text}, ctid, xmin FROM ONLY {table}"
_DECIDE = "UPDATE {stage} AS d SET op = CASE WHEN place IS NULL THEN 'I' ELSE 'U' END WHERE op = 'P'"


def prepare(connection: Connection, places: sql.Identifier) -> bool:
    """Make the table of places, if it is not there; whether it was made, and is to be closed to others."""
    if connection.execute("SELECT to_regclass(%s)", [places.as_string(connection)]).fetchone() != (None,):
        return False
    connection.execute(sql.SQL(_TABLE).format(places=places))
    # a hash index has no limit to the length of a key, and compares the key itself
    connection.execute(sql.SQL("CREATE INDEX ON {} USING hash (key)").format(places))
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(places))
    return True


def note_keys(connection: Connection, target: Target) -> None:
    """Fill in the staged rows' keys."""
    names = target.key if target.key is not None else [c.name for c in target.columns]
    text = staging.row_text(staging.staged_column(target, n) for n in names)
    with exact_texts(connection):
        connection.execute(sql.SQL("UPDATE {} AS d SET key = {}").format(STAGED, text))


def adopt(connection: Connection, target: Target, places: sql.Identifier) -> None:
    """Take down the places of all rows of a keyed table, whose keys nobody has altered so far."""
    text = staging.row_text(sql.Identifier(n) for n in target.key or ())
    connection.execute(sql.SQL("DELETE FROM {}").format(places))
    with exact_texts(connection), users_path(connection, target):
        connection.execute(sql.SQL(_ADOPT).format(places=places, text=text, table=target.relation))
    _analyze(connection, places)


def locate(connection: Connection, target: Target, places: sql.Identifier) -> None:
    """Find the staged rows' partners, and so what is to be done with each.

    Raises:
        MisfitError: a row that is to go or change is not where it was left.
    """
    note_keys(connection, target)
    parts = {
        "stage": STAGED,
        "places": places,
        "table": target.relation,
        "is_bag": sql.Literal(not target.is_keyed),
    }
    connection.execute(sql.SQL(_LOCATE_KEYED if target.is_keyed else _LOCATE_BAG).format(**parts))
    with users_path(connection, target):
        is_stray = connection.execute(sql.SQL(_STRAY).format(**parts)).fetchone() is not None
    if is_stray:
        raise MisfitError("SERVED_CHANGED: rows of the served table are not where they were left")
    connection.execute(sql.SQL(_DECIDE).format(**parts))


def record(connection: Connection, places: sql.Identifier) -> None:
    """Note where the rows lie that were staged and moved."""
    parts = {"places": places, "stage": STAGED}
    for statement in (
        "DELETE FROM {places} AS r USING {stage} AS d WHERE r.ctid = d.entry AND d.op IN ('D', 'I')",
        "UPDATE {places} AS r SET place = d.place, seen = d.seen FROM {stage} AS d "
        "WHERE r.ctid = d.entry AND d.op = 'U'",
        "INSERT INTO {places} SELECT d.key, d.place, d.seen FROM {stage} AS d WHERE d.op = 'I'",
    ):
        connection.execute(sql.SQL(statement).format(**parts))


def record_all(connection: Connection, places: sql.Identifier) -> None:
    """Note where all rows of the table lie, each of which was staged."""
    connection.execute(sql.SQL("DELETE FROM {}").format(places))
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT d.key, d.place, d.seen FROM {} AS d WHERE d.op <> 'D'").format(
            places, listed([sql.Identifier(n) for n in ("key", "place", "seen")]), STAGED
        )
    )
    _analyze(connection, places)


def _analyze(connection: Connection, places: sql.Identifier) -> None:
    """Let the planner know that keys are many, or it reads all of them to find a few."""
    connection.execute(sql.SQL("ANALYZE {}").format(places))
