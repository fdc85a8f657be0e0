"""Removes orphans: objects in a database, and captures, that are no longer needed.

- Buffers and triggers of tables that are no longer captured: those buffers are not trimmed, so they would grow forever.
- A slot that is no longer read, which would retain the server's WAL forever.
- Captures that no stream table reads.

The first two are recorded before or together with the change that orphans them, and until they are gone: the next
holder of the database's lock removes what belongs to no capture.
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
    """The database with the record that tables which are no longer captured may have buffers and triggers."""
    return replace(database, state=replace(database.state, has_orphans=True))


def remove_buffers(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    patience_seconds: float = _BUFFER_PATIENCE_SECONDS,
) -> AttachedDatabase:
    """Remove orphaned buffers and triggers; returns the database as it is recorded afterwards.

    Raises:
        MillstreamError: LOCK_TIMEOUT; they are then still recorded.
    """
    if not database.state.has_orphans:
        return database
    settings = replace(buffer_settings(database, catalog), patience_seconds=patience_seconds)
    found = own_tables(connection, settings)
    # The catalog is read after that: a capture is recorded, as not yet loaded, before its objects are created.
    kept = {c.oid for c in catalog.captures(database.name) if c.state.buffer is not None or c.version is None}
    for oid in found:
        if oid not in kept:
            remove(connection, oid, settings)
    after = replace(database, state=replace(database.state, has_orphans=False))
    catalog.put_database(after)
    return after


# Slots


def leaving_wal(database: AttachedDatabase) -> AttachedDatabase:
    """The database without its WAL state, except for the slot that has to be dropped, if there is one."""
    state = database.state
    left = state.unread_slot
    if state.wal is not None:
        left = SlotNames(state.wal.slot, state.wal.publication)
    elif state.transition is not None:
        left = slot_names(Transition.load(state.transition).slot)
    return replace(database, state=replace(state, wal=None, transition=None, triggers_installed=None, unread_slot=left))


def slot_names(slot: Slot) -> SlotNames:
    """The record of a slot that has to be dropped."""
    return SlotNames(slot.name, slot.publication)


def drop_unread_slot(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, progress: Callable[[str], None]
) -> AttachedDatabase:
    """Drop the slot that is no longer read; if that is not possible now, a later tick retries."""
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
    """Drop the unread slot and remove orphaned buffers, as far as locks and privileges allow."""
    database = drop_unread_slot(connection, catalog, database, progress)
    try:
        return remove_buffers(connection, catalog, database)
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
        progress(f"a table of {database.name} that is no longer captured keeps its triggers for now: {error.message}")
        return database


# Captures, from the catalog alone


def unread_captures(catalog: Catalog, database: str) -> list[Capture]:
    """The captures of a database that no stream table reads."""
    captures = catalog.captures(database)
    if not captures:
        return []
    read = {d.name for table in catalog.list() for d in table.definition.dependencies}
    return [c for c in captures if c.name not in read]


def is_wal_unread(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether a database retains WAL, or is about to, although it has no captures."""
    keeps = database.mode is not CaptureMode.TRIGGER or database.state.unread_slot is not None
    return keeps and not catalog.captures(database.name)


def has_orphaned_buffers(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether tables of a database may still have triggers that no tick will remove."""
    return database.state.has_orphans and not catalog.captures(database.name)


def is_to_be_ended(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether a database has captures or orphans to remove."""
    return (
        bool(unread_captures(catalog, database.name))
        or is_wal_unread(catalog, database)
        or has_orphaned_buffers(catalog, database)
    )


def databases_to_end(catalog: Catalog) -> list[str]:
    """The databases with captures or orphans to remove, after a crash or while they were unreachable."""
    return [d.name for d in catalog.databases() if is_to_be_ended(catalog, d)]
