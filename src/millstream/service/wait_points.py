"""Points that a stream table can be waited for, and whether its contents include them. Pure.

A point of a PostgreSQL database is one or more transactions. Contents include a transaction if, and only if, the
snapshot they were computed from sees it: transactions become visible in another order than that of their ids, and in
another one than that of their commits in the WAL. So a place in the WAL is waited for as a snapshot that is taken after
the WAL has passed it, which sees every transaction whose commit had returned before the place was read. Comparing
places would be wrong: with `synchronous_commit = off`, `pg_current_wal_lsn()` after a commit can be a place before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.catalog.capture_state import Position
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.lsn import parse_lsn

After = str | int | Mapping[str, str | int] | None
"""What a user waits for: a place in the WAL, a transaction or a version; of which database or table, unless there is
only one; None for all that is committed now."""

_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


@dataclass(frozen=True, slots=True)
class TransactionPoint:
    """The end of a transaction of a PostgreSQL database, by its 64-bit id."""

    xid: int

    def is_in(self, position: Position) -> bool:
        """Whether what was read up to a position includes it."""
        return PgSnapshot.parse(position["snapshot"]).sees(self.xid)


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """All transactions of a PostgreSQL database that a snapshot sees."""

    snapshot: PgSnapshot

    def is_in(self, position: Position) -> bool:
        """Whether what was read up to a position includes it."""
        return PgSnapshot.parse(position["snapshot"]).covers(self.snapshot)


DatabasePoint = TransactionPoint | SnapshotPoint


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user waits for, by what it belongs to: `lsns` and `xids` by database, `versions` by table.

    `is_now` stands for all that is committed now.
    """

    lsns: Mapping[str, int]
    xids: Mapping[str, int]
    versions: Mapping[str, int]
    is_now: bool = False


def parse_after(after: After, databases: Collection[str], tables: Collection[str]) -> Wanted:
    """What a user waits for.

    Args:
        databases, tables: the attached databases and the Delta tables behind the stream table.

    Raises:
        MillstreamError: WAIT_INVALID.

    >>> parse_after({"shop": "0/1A", "orders": 7}, ["shop"], ["orders"]).versions
    {'orders': 7}
    """
    if after is None:
        return Wanted({}, {}, {}, is_now=True)
    known = [*databases, *tables]
    if not isinstance(after, Mapping):
        after = {_only_one(databases if isinstance(after, str) else known, after): after}
    lsns, xids, versions = dict[str, int](), dict[str, int](), dict[str, int]()
    for name, value in after.items():
        place = str(TableName.parse(name)) if name.strip().lower() not in databases else name.strip().lower()
        if place not in known:
            raise _invalid(f"the stream table does not read {name}", known)
        if isinstance(value, str) and _LSN.fullmatch(value.strip()) and place in databases:
            lsns[place] = parse_lsn(value.strip())
        elif not re.fullmatch(r"[0-9]{1,20}", str(value).strip()):
            raise _invalid(f"{value!r} is not a point of {name}", known)
        else:
            (xids if place in databases else versions)[place] = int(value)
    return Wanted(lsns, xids, versions)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A captured table as the catalog records it: its version, and how far its database was read by then.

    Args:
        position: None while the mirror cannot be trusted to be at a position.
        shown: the position of the commit that the stream table shows, if it is known.
    """

    database: str
    version: int
    position: Position | None
    shown: Position | None = None


def is_shown(point: DatabasePoint, mirror: Mirror, frontier: int, seen_at: int | None) -> bool:
    """Whether the contents of a stream table include a point, as far as one mirror goes.

    Args:
        frontier: the mirror's version that the contents stand for.
        seen_at: a version of the mirror that is known to include the point.
    """
    if seen_at is not None and frontier >= seen_at:
        return True
    return mirror.shown is not None and point.is_in(mirror.shown)


def _only_one(known: Collection[str], value: object) -> str:
    if len(known) != 1:
        raise _invalid(f"it is not clear of what {value!r} is a point", known)
    return next(iter(known))


def _invalid(message: str, known: Collection[str]) -> MillstreamError:
    given = ", ".join(known) or "nothing that has points"
    hint = f"it reads {given}: give an LSN or a transaction id of a database, or a version of a table"
    return MillstreamError(Code.WAIT_INVALID, message, hint=hint)
