"""A slot that is no longer read: recorded until it is dropped, as it would keep the server's WAL for ever."""

from __future__ import annotations

from collections.abc import Callable

from millstream.catalog import Catalog
from millstream.catalog.attached import LEFT, AttachedDatabase
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.switch import INSTALLED, TRANSITION, as_left, with_details
from millstream.refresh.capture.ways import WAL, slot_in
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.slot import Slot
from millstream.sources.postgres.transition import Transition, forget

_PATIENCE_SECONDS = 0.5


def leaving(database: AttachedDatabase) -> AttachedDatabase:
    """The database with nothing known of its WAL but the slot that is to be dropped, if it has one."""
    slot = None
    if WAL in database.details:
        slot = slot_in(database)
    elif TRANSITION in database.details:
        slot = Transition.load(database.details[TRANSITION]).slot
    left = as_left(slot) if slot is not None else database.details.get(LEFT)
    return with_details(database, {WAL: None, TRANSITION: None, INSTALLED: None, LEFT: left})


def let_go(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, tell: Callable[[str], None]
) -> AttachedDatabase:
    """Drop the slot that a database has left; what is in the way now is tried again by a later tick."""
    left = database.details.get(LEFT)
    if left is None:
        return database
    try:
        forget(connection, Slot(left["slot"], left["publication"]), _PATIENCE_SECONDS)
    except MillstreamError as error:
        if error.code not in (Code.LOCK_TIMEOUT, Code.PRIVILEGE_MISSING):
            raise
        tell(f"the slot {left['slot']} cannot be dropped yet: {error.message}")
        return database
    after = with_details(database, {LEFT: None})
    catalog.put_database(after)
    return after
