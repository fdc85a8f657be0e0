"""What capture left in a database, or in the lake, and nobody needs any more.

- Buffers and triggers of tables that are no longer captured: nobody trims those buffers, so they would grow for ever.
- A slot that is no longer read, which would keep the server's WAL for ever.
- Captures that no stream table reads.

The first two are recorded with what orphans them, or before, and until they are gone: the next holder of the database's
lock removes what no capture accounts for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millstream.capture.change_buffers import buffer_settings
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.capture_state import SlotNames
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.sources.postgres.triggers.buffers import remove
from millstream.sources.postgres.uninstall import own_tables
from millstream.sources.postgres.wal.mode_switch import Transition, drop_slot_and_publication
from millstream.sources.postgres.wal.slot import Slot

_SLOT_PATIENCE_SECONDS = 0.5
_BUFFER_PATIENCE_SECONDS = 0.1


# Buffers and triggers


def with_orphans(database: AttachedDatabase) -> AttachedDatabase:
    """The database with the record that tables that are no longer captured may have buffers and triggers."""
    return replace(database, state=replace(database.state, has_orphans=True))


def remove_buffers(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    patience_seconds: float = _BUFFER_PATIENCE_SECONDS,
) -> AttachedDatabase:
    """Remove orphaned buffers and triggers; gives the database as it is recorded then.

    Raises:
        MillstreamError: LOCK_TIMEOUT; then they are still recorded.
    """
    if not database.state.has_orphans:
        return database
    settings = replace(buffer_settings(database, catalog), patience_seconds=patience_seconds)
    found = own_tables(connection, settings)
    # Asked after that: a capture is recorded, as one that is not loaded yet, before anything is made for it.
    kept = {c.oid for c in catalog.captures(database.name) if c.state.buffer is not None or c.version is None}
    for oid in found:
        if oid not in kept:
            remove(connection, oid, settings)
    after = replace(database, state=replace(database.state, has_orphans=False))
    catalog.put_database(after)
    return after


# Slots


def leaving_wal(database: AttachedDatabase) -> AttachedDatabase:
    """The database with nothing known of its WAL but the slot that is to be dropped, if it has one."""
    state = database.state
    left = state.unread_slot
    if state.wal is not None:
        left = SlotNames(state.wal.slot, state.wal.publication)
    elif state.transition is not None:
        left = slot_names(Transition.load(state.transition).slot)
    return replace(database, state=replace(state, wal=None, transition=None, triggers_installed=None, unread_slot=left))


def slot_names(slot: Slot) -> SlotNames:
    """What is recorded of a slot that is to be dropped."""
    return SlotNames(slot.name, slot.publication)


def drop_unread_slot(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, progress: Callable[[str], None]
) -> AttachedDatabase:
    """Drop the slot that is no longer read; if something is in the way now, a later tick tries again."""
    left = database.state.unread_slot
    if left is None:
        return database
    try:
        drop_slot_and_publication(connection, Slot(left.slot, left.publication), _SLOT_PATIENCE_SECONDS)
    except MillstreamError as error:
        if error.code not in (Code.LOCK_TIMEOUT, Code.PRIVILEGE_MISSING):
            raise
        progress(f"the slot {left.slot} cannot be dropped yet: {error.message}")
        return database
    after = replace(database, state=replace(database.state, unread_slot=None))
    catalog.put_database(after)
    return after


# Both


def remove_orphans(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, progress: Callable[[str], None]
) -> AttachedDatabase:
    """Drop the unread slot and remove orphaned buffers, as far as nothing is in the way now."""
    database = drop_unread_slot(connection, catalog, database, progress)
    try:
        return remove_buffers(connection, catalog, database)
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
        progress(f"a table of {database.name} that is no longer captured keeps its triggers for now: {error.message}")
        return database


# Captures, by the catalog alone


def unread_captures(catalog: Catalog, database: str) -> list[Capture]:
    """The captures of a database that no stream table reads."""
    captures = catalog.captures(database)
    if not captures:
        return []
    read = {d.name for table in catalog.list() for d in table.definition.dependencies}
    return [c for c in captures if c.name not in read]


def is_wal_unread(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether a database keeps WAL, or is about to, for no capture at all."""
    keeps = database.mode is not CaptureMode.TRIGGER or database.state.unread_slot is not None
    return keeps and not catalog.captures(database.name)


def has_orphaned_buffers(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether tables of a database may still have triggers, and no tick will come to remove them."""
    return database.state.has_orphans and not catalog.captures(database.name)


def is_to_be_ended(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether a database has something that is to be ended."""
    return (
        bool(unread_captures(catalog, database.name))
        or is_wal_unread(catalog, database)
        or has_orphaned_buffers(catalog, database)
    )


def databases_to_end(catalog: Catalog) -> list[str]:
    """The databases with something to be ended, after a crash or while they could not be reached."""
    return [d.name for d in catalog.databases() if is_to_be_ended(catalog, d)]
