"""Has applications write to their tables again, where our publication makes PostgreSQL refuse that.

Such a table leaves the publication before anything else is done: its application matters more than how its changes are
read. The tick then captures it by triggers, as a table that the WAL does not give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from millstream.catalog import Catalog
from millstream.catalog.attached import LEFT, AttachedDatabase, Capture
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.record import buffer_settings
from millstream.refresh.capture.switch import with_details
from millstream.refresh.capture.ways import WAL, without_published
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.publication import unpublish
from millstream.sources.postgres.refused_writes import RefusedWrites, refused_writes
from millstream.sources.postgres.slot import slot_of

REFUSED = "refused_writes"
"""A detail of a database: what owners have to run before applications can write to their tables again, by table."""
_PATIENCE_SECONDS = 0.5


def accept_writes(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    captures: Sequence[Capture],
    tell: Callable[[str], None],
) -> AttachedDatabase:
    """Take tables out of the database's publication whose writers are refused; gives the database as recorded then.

    A lock that is not to be had is asked for again by the next tick.
    """
    names = {slot_of(catalog.lake_id(), database.name).publication}
    names |= {str(database.details[key]["publication"]) for key in (WAL, LEFT) if key in database.details}
    oids = [c.oid for c in captures]
    refused = refused_writes(connection, names, oids)
    if not refused and REFUSED not in database.details:
        return database
    after = database
    if WAL in database.details:  # before it is so: a publication that has changed otherwise has lost changes
        gone = {table.oid for table in refused}
        after = without_published(database, [c.id for c in captures if c.oid in gone])
    after = _recorded(catalog, database, after)
    for table in refused:
        _unpublish(connection, catalog, after, table, tell)
    left = refused_writes(connection, names, oids) if refused else []
    remedies = {table.name: table.remedy(connection) for table in left}
    return _recorded(catalog, after, with_details(after, {REFUSED: remedies or None}))


def _unpublish(
    connection: Connection,
    catalog: Catalog,
    database: AttachedDatabase,
    table: RefusedWrites,
    tell: Callable[[str], None],
) -> None:
    tell(f"{table.name} leaves the publication {table.publication}: PostgreSQL refuses to update or delete its rows")
    settings = replace(buffer_settings(database, catalog), patience_seconds=_PATIENCE_SECONDS)
    try:
        unpublish(connection, table.publication, table.oid, settings)
    except MillstreamError as error:
        if error.code is not Code.LOCK_TIMEOUT:
            raise
        tell(error.message)


def _recorded(catalog: Catalog, before: AttachedDatabase, after: AttachedDatabase) -> AttachedDatabase:
    if after != before:
        catalog.put_database(after)
    return after


def news(before: AttachedDatabase, after: AttachedDatabase) -> list[str]:
    """What is reported to a user once: the tables whose writers only their owner can unblock."""
    known, found = before.details.get(REFUSED, {}), after.details.get(REFUSED, {})
    return [
        f"PostgreSQL refuses to update or delete rows of {table}: it is published without a replica identity; "
        f"let its owner run: {remedy}"
        for table, remedy in found.items()
        if table not in known
    ]
