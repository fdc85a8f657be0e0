"""Ends captures that no stream table reads any more, and removes their objects and mirrors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.capture.database_access import DatabaseAccess
from millstream.capture.installation import Installation, guard_captured_tables
from millstream.capture.mode_switch import Switch
from millstream.capture.orphans import has_orphaned_buffers, is_wal_unread, remove_buffers, unread_captures
from millstream.catalog import Catalog
from millstream.catalog.attached import Capture
from millstream.catalog.models import ObjectKind
from millstream.naming import TableName
from millstream.postgres.connection import Connection
from millstream.settings import Settings

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Ending:
    """Ends captures.

    Args:
        mirrors: the directory of the mirrors.
        switches: the state of mode switches in this process, by database.
    """

    access: DatabaseAccess
    settings: Settings
    mirrors: Path
    switches: dict[str, Switch]
    progress: Callable[[str], None]

    def end_unread(self, database: str, patience_seconds: float | None = None) -> None:
        """End the captures that no stream table reads; the caller holds the lock under which captures end.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, LOCK_TIMEOUT; a later tick retries.
        """
        access, catalog = self.access, self.access.catalog
        ended = unread_captures(catalog, database)
        if ended:
            with access.own_connection(access.get(database)) as connection:
                for capture in ended:
                    self._end(connection, capture, patience_seconds)
            guard_captured_tables(access, self.settings, database, self.progress)
        if is_wal_unread(catalog, access.get(database)):
            with access.own_connection(access.get(database)) as connection:
                self._leave_wal(connection, database)
        if has_orphaned_buffers(catalog, access.get(database)):
            with access.own_connection(access.get(database)) as connection, access.ticking(database):
                remove_buffers(connection, catalog, access.get(database), patience_seconds or _PATIENCE_SECONDS)
        sweep(catalog, self.mirrors)

    def _end(self, connection: Connection, capture: Capture, patience_seconds: float | None) -> None:
        access, catalog = self.access, self.access.catalog
        with access.ticking(capture.database):
            if not capture.is_whole:
                installation = Installation(connection, catalog, access.get(capture.database))
                if (after := installation.end(capture, patience_seconds)) != installation.database:
                    catalog.put_database(after)
            name = TableName.parse(capture.name)
            known = catalog.lake_object(ObjectKind.TABLE, name)
            if known is not None and known.location == capture.path:
                catalog.drop_lake_object(ObjectKind.TABLE, name)
            catalog.drop_capture(capture.id)
        shutil.rmtree(capture.path, ignore_errors=True)

    def _leave_wal(self, connection: Connection, name: str) -> None:
        """Drop a slot that retains WAL although no capture needs it."""
        with self.access.ticking(name):
            if (switch := self.switches.pop(name, None)) is not None:
                switch.close()
            catalog = self.access.catalog
            catalog.put_database(Installation(connection, catalog, self.access.get(name)).leave_wal())


def sweep(catalog: Catalog, mirrors: Path) -> None:
    """Delete mirrors that have no record because of a crash."""
    if not mirrors.exists():
        return
    found = list(mirrors.iterdir())
    # The catalog is read after the directory: another process may be loading a mirror, and records it first.
    known = {c.path for c in catalog.captures()}
    known |= {str(item.location) for item in catalog.lake_objects(ObjectKind.TABLE)}
    for directory in found:
        if str(directory) not in known:
            shutil.rmtree(directory, ignore_errors=True)
