"""Enables Delta's change data feed on the tables that stream tables read, unless a setting forbids it."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.catalog import Catalog
from millstream.catalog.models import ObjectKind, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.naming import TableName
from millstream.notices import ChangeFeedWarning, warn
from millstream.settings import Settings


class ChangeFeeds:
    """The change data feeds of a lake's tables."""

    def __init__(self, catalog: Catalog, workers: Workers, settings: Settings) -> None:
        self._catalog = catalog
        self._workers = workers
        self._settings = settings

    def switch_on(self, compiled: Compiled) -> None:
        """Enable the change data feed of a query's sources, with a warning, because that alters the user's tables."""
        if not compiled.is_incremental:
            return
        store = self._workers.here().store
        for source in compiled.sources.values():
            table = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(source.id))
            if table is None or not table.location or store.snapshot(table.location).has_change_feed:
                continue
            if not self._settings.enable_change_data_feed:
                raise MillstreamError(
                    Code.SOURCE_NO_CHANGE_FEED,
                    f"the change data feed of {source.id} is off, and enable_change_data_feed forbids switching it on",
                    hint=f"ALTER TABLE {source.id} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
                )
            self._enable(source.id, table.location)

    def keep_on(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> None:
        """Enable the change data feed of sources again if it was disabled."""
        store, is_allowed = self._workers.here().store, self._settings.enable_change_data_feed
        for name in compiled.sources if compiled.is_incremental and is_allowed else ():
            moved = name in versions and table.frontier.get(name) != versions[name]
            if moved and not store.snapshot(paths[name], versions[name]).has_change_feed:
                self._enable(name, paths[name])

    def _enable(self, name: str, path: str) -> None:
        self._workers.here().store.enable_change_data_feed(path)
        warn(
            f"the change data feed of {name} was switched on (delta.enableChangeDataFeed); "
            "set enable_change_data_feed = false to forbid this",
            ChangeFeedWarning,
        )

    def obstacle(self, name: str) -> str | None:
        """Why a Delta table's changes cannot be read; None if they can, or if the change data feed may be enabled."""
        table = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(name))
        if self._settings.enable_change_data_feed or table is None or not table.location:
            return None
        if self._workers.here().store.snapshot(table.location).has_change_feed:
            return None
        return "its change data feed is off, and enable_change_data_feed forbids switching it on"
