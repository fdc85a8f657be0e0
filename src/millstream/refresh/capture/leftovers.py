"""Buffers and triggers of tables that are no longer captured: nobody trims those buffers, so they would grow for ever.

That there may be some is recorded with what makes them so, or before, and until they are gone: whoever holds the
database's lock then removes what no capture accounts for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millstream.catalog import Catalog
from millstream.catalog.attached import LEFTOVERS, AttachedDatabase
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.record import BUFFER, buffer_settings
from millstream.refresh.capture.switch import with_details
from millstream.sources.postgres.buffers import remove
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.own_objects import own_tables

_PATIENCE_SECONDS = 0.1


def with_leftovers(database: AttachedDatabase) -> AttachedDatabase:
    """The database with the record that there may be some."""
    return with_details(database, {LEFTOVERS: True})


def clear(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, patience_seconds: float = _PATIENCE_SECONDS
) -> AttachedDatabase:
    """Remove what is left; gives the database as it is recorded then.

    Raises:
        MillstreamError: LOCK_TIMEOUT; then it is still recorded.
    """
    if LEFTOVERS not in database.details:
        return database
    settings = replace(buffer_settings(database, catalog), patience_seconds=patience_seconds)
    found = own_tables(connection, settings)
    # Asked after that: a capture is recorded, as one that is not loaded yet, before anything is made for it.
    kept = {c.oid for c in catalog.captures(database.name) if BUFFER in c.details or c.version is None}
    for oid in found:
        if oid not in kept:
            remove(connection, oid, settings)
    after = with_details(database, {LEFTOVERS: None})
    catalog.put_database(after)
    return after


def clear_if_free(
    connection: Connection, catalog: Catalog, database: AttachedDatabase, tell: Callable[[str], None]
) -> AttachedDatabase:
    """The same; what is in the way now is tried again by a later tick."""
    try:
        return clear(connection, catalog, database)
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
        tell(f"a table of {database.name} that is no longer captured keeps its triggers for now: {error.message}")
        return database
