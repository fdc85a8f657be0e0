"""Detects that a database was put back to an earlier state under the same identity.

Restoring a copy of the server's files also restores its old transaction ids: new transactions get ids that the position
counts as read, and the mirrors may hold rows that the database never committed.

A server that crashes loses what was not durable. So changes are made durable before they are landed, in this order:

1. A tick takes its snapshot, and reads the changes that the snapshot sees.
2. It writes the snapshot into the database as its mark. That commit is durable, and so is everything it sees.
3. It lands the changes, and records its position and the mark in the catalog, in one transaction.
4. It trims the buffers.

Regardless of when the server crashes, it comes back with a mark that covers the recorded one, and with transaction ids
and WAL past the position. Files from before step 2 have an older mark, regardless of later writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.capture_state import Position
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.snapshot_transaction import DatabaseState
from millstream.sources.postgres.triggers.trims import recorded_mark
from millstream.sources.postgres.wal.lsn import parse_lsn

_NO_TIMELINE = 0


def is_older(
    connection: Connection, here: DatabaseState, database: AttachedDatabase, captures: Sequence[Capture]
) -> bool:
    """Whether a database is at an earlier state than its mirrors.

    The mark is read only if the server was restarted: files cannot be restored without a restart.
    """
    positions = [database.position, *(c.state.position for c in captures)]
    mark, found = database.state.mark, None
    if mark is not None and database.state.server_started != here.started:
        found = recorded_mark(connection, database.state.buffer_schema)
    return went_back(here, [p for p in positions if p is not None], mark, found)


def went_back(here: DatabaseState, positions: Iterable[Position], mark: str | None, found: PgSnapshot | None) -> bool:
    """Whether a database is behind what was recorded of it.

    Args:
        here: its current state.
        positions: the positions that were read.
        mark: the mark in the catalog.
        found: the mark in the database; None if it is not known.
    """
    if any(_is_before(here, position) for position in positions):
        return True
    return mark is not None and found is not None and not found.covers(PgSnapshot.parse(mark))


def _is_before(here: DatabaseState, position: Position) -> bool:
    lsn = position.get("lsn")
    if lsn is not None and here.flushed < parse_lsn(lsn):
        return True
    return not PgSnapshot.parse(here.snapshot).covers(PgSnapshot.parse(position["snapshot"]))


def unrecognised(database: AttachedDatabase) -> AttachedDatabase:
    """The database with an identity that no database has, so that the next connection counts as another database."""
    return replace(database, timeline=_NO_TIMELINE)
