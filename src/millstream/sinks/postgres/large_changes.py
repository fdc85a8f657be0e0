"""A net change of any size: netted in the database, since it is too large to be held here.

It is staged as it comes, in pieces, and becomes what `net_change` makes of a small one: equal rows that go and come are
no change, and with a key a new row takes the place of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from psycopg import sql

from millstream import naming
from millstream.sinks.postgres import staging
from millstream.sinks.postgres.changes import Staged
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.moves import Counts
from millstream.sinks.postgres.staging import STAGED, exact_texts, stage
from millstream.sinks.postgres.target import Connection, Target

if TYPE_CHECKING:
    import pyarrow as pa

_NET = """
DELETE FROM {stage} AS d USING (
  SELECT n, row_number() OVER (PARTITION BY key, op) AS i, count(*) FILTER (WHERE op = 'P') OVER same AS puts,
         count(*) FILTER (WHERE op = 'D') OVER same AS goes
  FROM {stage} WINDOW same AS (PARTITION BY key)
) AS c WHERE c.n = d.n AND c.i <= least(c.puts, c.goes)
"""
_REPEATED = "SELECT FROM {stage} WHERE op = 'P' GROUP BY key HAVING count(*) > 1 LIMIT 1"
_NEW = """
UPDATE {stage} AS d SET op = 'A'
WHERE d.op = 'P' AND NOT EXISTS (SELECT FROM {stage} AS o WHERE o.op = 'D' AND o.key = d.key)
"""
_REPLACED = """
DELETE FROM {stage} AS d WHERE d.op = 'D' AND EXISTS (SELECT FROM {stage} AS o WHERE o.op = 'P' AND o.key = d.key)
"""


def stage_pieces(connection: Connection, target: Target, pieces: Iterable[pa.Table], new: str) -> Staged:
    """Stage the net change that the pieces of a Z-set with `naming.WEIGHT` add up to.

    Args:
        new: the op of a row that takes no other's place, where there is a key.

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

    stage(connection, target, lines())
    _note(connection, target, names)
    _run(connection, _NET)
    if target.key is None:
        counted = _counted(connection)
        return Staged(Counts(inserted=counted.get("P", 0), deleted=counted.get("D", 0)), frozenset())
    _note(connection, target, target.key)
    if connection.execute(sql.SQL(_REPEATED).format(stage=STAGED)).fetchone() is not None:
        raise MisfitError(f"KEY_REPEATED: two rows have the same key ({', '.join(target.key)})")
    if new == "A":
        _run(connection, _NEW)
    _run(connection, _REPLACED)
    counted = _counted(connection)
    return Staged(Counts(counted.get("A", 0), counted.get("P", 0), counted.get("D", 0)), frozenset(nulls))


def _note(connection: Connection, target: Target, names: Iterable[str]) -> None:
    """Have the staged rows known by those columns."""
    text = staging.row_text(staging.staged_column(target, name) for name in names)
    with exact_texts(connection):
        connection.execute(sql.SQL("UPDATE {} AS d SET key = {}").format(STAGED, text))
    connection.execute(sql.SQL("ANALYZE {}").format(STAGED))


def _run(connection: Connection, statement: str) -> None:
    connection.execute(sql.SQL(statement).format(stage=STAGED))


def _counted(connection: Connection) -> dict[str, int]:
    rows = connection.execute(sql.SQL("SELECT op::text, count(*) FROM {} GROUP BY op").format(STAGED)).fetchall()
    return {str(op): int(count) for op, count in rows}
