"""What of attached databases is captured though nobody reads it any more; asked of the catalog alone."""

from __future__ import annotations

from millstream.catalog import Catalog
from millstream.catalog.attached import LEFT, LEFTOVERS, AttachedDatabase, Capture, CaptureMode


def unread(catalog: Catalog, database: str) -> list[Capture]:
    """The captures of a database that no stream table reads."""
    captures = catalog.captures(database)
    if not captures:
        return []
    read = {d.name for table in catalog.list() for d in table.definition.dependencies}
    return [c for c in captures if c.name not in read]


def is_wal_unread(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether a database keeps WAL, or is about to, for no capture at all."""
    keeps = database.mode is not CaptureMode.TRIGGER or LEFT in database.details
    return keeps and not catalog.captures(database.name)


def has_leftovers(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether tables of a database may still have triggers, and no tick will come to remove them."""
    return LEFTOVERS in database.details and not catalog.captures(database.name)


def is_forgotten(catalog: Catalog, database: AttachedDatabase) -> bool:
    """Whether something is left to be ended in a database."""
    return bool(unread(catalog, database.name)) or is_wal_unread(catalog, database) or has_leftovers(catalog, database)


def forgotten(catalog: Catalog) -> list[str]:
    """The databases in which something is left to be ended, after a crash or while they could not be reached."""
    return [d.name for d in catalog.databases() if is_forgotten(catalog, d)]
