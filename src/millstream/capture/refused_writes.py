"""Unblocks writes to source tables that PostgreSQL refuses because of our publication.

A tick removes such a table from the publication before it does anything else: the application matters more than the
capture mode. The tick then captures the table by triggers, like any table that the WAL does not provide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from millstream.capture.change_buffers import buffer_settings
from millstream.capture.change_readers import without_published
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.sources.postgres.wal.publication import unpublish
from millstream.sources.postgres.wal.refused_writes import RefusedWrites, refused_writes
from millstream.sources.postgres.wal.slot import slot_of

_PATIENCE_SECONDS = 0.5


def accept_writes(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    captures: Sequence[Capture],
    progress: Callable[[str], None],
) -> AttachedDatabase:
    """Remove tables from the publication if PostgreSQL refuses writes to them; returns the recorded database.

    If a lock cannot be acquired, the next tick retries.
    """
    names = {slot_of(catalog.lake_id(), database.name).publication}
    names |= {known.publication for known in (database.state.wal, database.state.unread_slot) if known is not None}
    oids = [c.oid for c in captures]
    refused = refused_writes(connection, names, oids)
    if not refused and not database.state.refused_writes:
        return database
    after = database
    if database.state.wal is not None:  # recorded first: an unrecorded change of the publication counts as lost changes
        gone = {table.oid for table in refused}
        after = without_published(database, [c.id for c in captures if c.oid in gone])
    after = _recorded(catalog, database, after)
    for table in refused:
        _unpublish(connection, catalog, after, table, progress)
    left = refused_writes(connection, names, oids) if refused else []
    remedies = {table.name: table.remedy(connection) for table in left}
    return _recorded(catalog, after, replace(after, state=replace(after.state, refused_writes=remedies)))


def _unpublish(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    table: RefusedWrites,
    progress: Callable[[str], None],
) -> None:
    progress(
        f"removing {table.name} from publication {table.publication}: PostgreSQL refuses to update or delete its rows"
    )
    settings = replace(buffer_settings(database, catalog), patience_seconds=_PATIENCE_SECONDS)
    try:
        unpublish(connection, table.publication, table.oid, settings)
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
        progress(error.message)


def _recorded(catalog: Catalog, before: AttachedDatabase, after: AttachedDatabase) -> AttachedDatabase:
    if after != before:
        catalog.put_database(after)
    return after


def warnings_between(before: AttachedDatabase, after: AttachedDatabase) -> list[str]:
    """Warnings, given once per table, about tables to which only their owner can unblock writes."""
    known, found = before.state.refused_writes, after.state.refused_writes
    return [
        f"PostgreSQL refuses to update or delete rows of {table}: it is published without a replica identity; "
        f"ask its owner to run: {remedy}"
        for table, remedy in found.items()
        if table not in known
    ]
