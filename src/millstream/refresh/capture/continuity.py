"""Whether a database has gone on from where it was read, or was put back to an earlier state under the same identity.

A copy of the server's files that is put back brings its old transaction ids back, too: new transactions get ids that
the position counts as read, and what is in the mirrors may never have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.catalog.attached import POSITION, AttachedDatabase, Capture, Position
from millstream.refresh.capture.record import BUFFER, buffer_of
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.lsn import parse_lsn
from millstream.sources.postgres.poll import Here
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.trims import trimmed_to

STARTED = "started"
"""A detail of a database: when its server had started, as a tick saw it."""
_TRIMMED = "trimmed"
"""Of a buffer: up to where it is trimmed once the tick has ended that recorded it."""
_NO_TIMELINE = 0


def is_older(connection: Connection, here: Here, database: AttachedDatabase, captures: Sequence[Capture]) -> bool:
    """Whether a database is at an earlier state than its mirrors.

    What was read was durable, so its transaction ids and its WAL never go back. They may have caught up since it was
    put back; then it is told by what its buffers were trimmed to. That is less certain, as a crash may have come before
    a trim; so it is looked at only after the server was started anew, without which nothing can be put back.
    """
    positions = [database.position, *(c.details.get(POSITION) for c in captures)]
    if any(_is_before(here, position) for position in positions if position is not None):
        return True
    return database.details.get(STARTED, here.started) != here.started and _has_untrimmed(connection, captures)


def _is_before(here: Here, position: Position) -> bool:
    lsn = position.get("lsn")
    if lsn is not None and here.flushed < parse_lsn(lsn):
        return True
    return not PgSnapshot.parse(here.snapshot).covers(PgSnapshot.parse(position["snapshot"]))


def _has_untrimmed(connection: Connection, captures: Sequence[Capture]) -> bool:
    known = {c.oid: str(c.details[BUFFER][_TRIMMED]) for c in captures if c.details.get(BUFFER, {}).get(_TRIMMED)}
    found = trimmed_to(connection, [buffer_of(c) for c in captures if c.oid in known])
    return any(not found[oid].covers(PgSnapshot.parse(to)) for oid, to in known.items() if oid in found)


def trimmed(capture: Capture, position: Position) -> Capture:
    """The capture with the record that its buffer is trimmed to a position."""
    if BUFFER not in capture.details:
        return capture
    buffer = {**capture.details[BUFFER], _TRIMMED: position["snapshot"]}
    return replace(capture, details={**capture.details, BUFFER: buffer})


def unrecognised(database: AttachedDatabase) -> AttachedDatabase:
    """The database with an identity that none has: whatever answers is taken for another one."""
    return replace(database, timeline=_NO_TIMELINE)
