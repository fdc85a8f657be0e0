"""Whether a database has gone on from where it was read, or was put back to an earlier state under the same identity.

A copy of the server's files that is put back brings its old transaction ids back, too: new transactions get ids that
the position counts as read, and what is in the mirrors may never have happened.

A server that has crashed loses what was not durable, and what was read was made durable first, in this order:

1. A tick takes its snapshot, and reads what it sees.
2. It leaves the snapshot in the database as its mark, by a durable commit; what the snapshot sees is durable with it.
3. It lands what it has read, and records its position and the mark in the catalog, in one transaction.
4. It trims the buffers.

So wherever in between the server crashes, it comes back with a mark that covers the recorded one, and with transaction
ids and WAL that are past the position. Files of a time before 2 have an older mark, whatever was written since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from millstream.catalog.attached import POSITION, AttachedDatabase, Capture, Position
from millstream.refresh.capture.record import BUFFER_SCHEMA
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.lsn import parse_lsn
from millstream.sources.postgres.poll import Here
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.trims import mark_in

STARTED = "started"
"""A detail of a database: when its server had started, as a tick saw it."""
MARK = "mark"
"""A detail of a database: the mark that the last tick that has landed changes of triggers left there."""
_NO_TIMELINE = 0


def is_older(connection: Connection, here: Here, database: AttachedDatabase, captures: Sequence[Capture]) -> bool:
    """Whether a database is at an earlier state than its mirrors.

    The mark is looked at only after the server was restarted, without which nothing can be put back.
    """
    positions = [database.position, *(c.details.get(POSITION) for c in captures)]
    mark, found = database.details.get(MARK), None
    if mark is not None and database.details.get(STARTED) != here.started:
        found = mark_in(connection, str(database.details[BUFFER_SCHEMA]))
    return went_back(here, [p for p in positions if p is not None], mark, found)


def went_back(here: Here, positions: Iterable[Position], mark: str | None, found: PgSnapshot | None) -> bool:
    """Whether a database is behind what was recorded of it.

    Args:
        here: where it is now.
        positions: up to where it was read.
        mark: the one that was recorded.
        found: the one that it has; None if that is not known.
    """
    if any(_is_before(here, position) for position in positions):
        return True
    return mark is not None and found is not None and not found.covers(PgSnapshot.parse(mark))


def _is_before(here: Here, position: Position) -> bool:
    lsn = position.get("lsn")
    if lsn is not None and here.flushed < parse_lsn(lsn):
        return True
    return not PgSnapshot.parse(here.snapshot).covers(PgSnapshot.parse(position["snapshot"]))


def unrecognised(database: AttachedDatabase) -> AttachedDatabase:
    """The database with an identity that none has: whatever answers is taken for another one."""
    return replace(database, timeline=_NO_TIMELINE)
