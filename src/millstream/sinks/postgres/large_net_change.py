"""Computes the net change in the database, for changes that are too large to be held in memory.

The change is copied in pieces. The result is the same as that of `net_change` for a small one: equal rows that are
deleted and inserted cancel each other, and with a key a new row replaces the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from millstream import naming
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.reasons import Reason
from millstream.sinks.postgres import incoming_rows
from millstream.sinks.postgres.dml import Counts
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.incoming_rows import copy_incoming, exact_texts, incoming_table
from millstream.sinks.postgres.net_change import IncomingChange
from millstream.sinks.postgres.target import Target

if TYPE_CHECKING:
    import pyarrow as pa

_NET = """
DELETE FROM {incoming} AS d USING (
  SELECT n, row_number() OVER (PARTITION BY key, op) AS i, count(*) FILTER (WHERE op = 'P') OVER same AS puts,
         count(*) FILTER (WHERE op = 'D') OVER same AS goes
  FROM {incoming} WINDOW same AS (PARTITION BY key)
) AS c WHERE c.n = d.n AND c.i <= least(c.puts, c.goes)
"""
_REPEATED = "SELECT FROM {incoming} WHERE op = 'P' GROUP BY key HAVING count(*) > 1 LIMIT 1"
_NEW = """
UPDATE {incoming} AS d SET op = 'A'
WHERE d.op = 'P' AND NOT EXISTS (SELECT FROM {incoming} AS o WHERE o.op = 'D' AND o.key = d.key)
"""
_REPLACED = """
DELETE FROM {incoming} AS d WHERE d.op = 'D' AND EXISTS (SELECT FROM {incoming} AS o WHERE o.op = 'P' AND o.key = d.key)
"""


def copy_pieces(connection: Connection, target: Target, pieces: Iterable[pa.Table], new: str) -> IncomingChange:
    """Copy the net change that the pieces of a Z-set with `naming.WEIGHT` add up to.

    Args:
        new: the op of a row that replaces no other, if there is a key.

    Raises:
        MillstreamError: SERVE_FAILED for a value that PostgreSQL cannot hold.
        MisfitError: two new rows have the same key.
    """
    nulls: set[str] = set()
    names = [c.name for c in target.columns]

    def lines() -> Iterator[tuple[str, str]]:
        for piece in pieces:
            nulls.update(k for k in target.key or () if piece[k].null_count)
            for line, weight in zip(lines_of(piece, names), piece[naming.WEIGHT].to_pylist(), strict=True):
                for _ in range(abs(weight)):
                    yield "P" if weight > 0 else "D", line

    copy_incoming(connection, target, lines())
    _set_key(connection, target, names)
    _run(connection, _NET)
    if target.key is None:
        counted = _counted(connection)
        return IncomingChange(Counts(inserted=counted.get("P", 0), deleted=counted.get("D", 0)), frozenset())
    _set_key(connection, target, target.key)
    if connection.execute(sql.SQL(_REPEATED).format(incoming=incoming_table())).fetchone() is not None:
        raise MisfitError(f"{Reason.KEY_REPEATED}: two rows have the same key ({', '.join(target.key)})")
    if new == "A":
        _run(connection, _NEW)
    _run(connection, _REPLACED)
    counted = _counted(connection)
    return IncomingChange(Counts(counted.get("A", 0), counted.get("P", 0), counted.get("D", 0)), frozenset(nulls))


def _set_key(connection: Connection, target: Target, names: Iterable[str]) -> None:
    """Set the key of the incoming rows to the text of those columns."""
    text = incoming_rows.row_text(incoming_rows.incoming_column(target, name) for name in names)
    with exact_texts(connection):
        connection.execute(sql.SQL("UPDATE {} AS d SET key = {}").format(incoming_table(), text))
    connection.execute(sql.SQL("ANALYZE {}").format(incoming_table()))


def _run(connection: Connection, statement: str) -> None:
    connection.execute(sql.SQL(statement).format(incoming=incoming_table()))


def _counted(connection: Connection) -> dict[str, int]:
    rows = connection.execute(
        sql.SQL("SELECT op::text, count(*) FROM {} GROUP BY op").format(incoming_table())
    ).fetchall()
    return {str(op): int(count) for op, count in rows}
