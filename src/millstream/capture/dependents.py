"""The stream tables that read a database, and the catalog records that show them changes of its tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from millstream.capture.drift import Action
from millstream.catalog import Catalog
from millstream.catalog.attached import Capture
from millstream.catalog.capture_state import RecordedError, SeenView
from millstream.catalog.models import LakeObject, ObjectKind, SourceKind, StreamTable
from millstream.catalog.object_details import ObjectDetails
from millstream.naming import TableName
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.view_rights import ViewRights, read_view_rights


class Dependents:
    """The stream tables of a lake, read again only when the catalog's generation has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._guard = threading.Lock()
        self._seen: tuple[int, tuple[StreamTable, ...], Mapping[str, frozenset[str]]] | None = None

    @property
    def _tables(self) -> tuple[StreamTable, ...]:
        return self._look()[0]

    def _look(self) -> tuple[tuple[StreamTable, ...], Mapping[str, frozenset[str]]]:
        """The stream tables, and the views they read, by the views' databases."""
        generation = self._catalog.generation()
        with self._guard:
            if self._seen is None or self._seen[0] != generation:
                tables = self._catalog.list()
                self._seen = (generation, tables, _views_of(tables))
            return self._seen[1:]

    def unread(self, captures: Sequence[Capture]) -> list[Capture]:
        """The given captures that no stream table reads."""
        if not captures:
            return []
        read = {d.name for table in self._tables for d in table.definition.dependencies}
        return [c for c in captures if c.name not in read]

    def reinitialise(self, database: str, reason: str) -> None:
        """Mark all stream tables that read a database for reinitialisation."""
        for table in self._tables:
            if any(TableName.parse(d.name).database == database for d in table.definition.dependencies):
                self._catalog.mark_needs_reinit(table.id, reason)

    def update_lake_object(self, capture: Capture, action: Action, reason: str, *, is_back: bool) -> None:
        """Update the lake's object for a table, to show its dependents that it is gone, is altered, or exists again."""
        name, state = TableName.parse(capture.name), capture.state
        if action is Action.DROP:
            if not state.missing:
                self._catalog.drop_lake_object(ObjectKind.TABLE, name)
        elif action is Action.REBIND:
            if not state.stale or state.missing:
                self._catalog.put_lake_object(mirror_object(capture, reason), replace=True)
        elif is_back and action is not Action.QUARANTINE:
            self._catalog.put_lake_object(mirror_object(capture), replace=True)

    def views(self, database: str) -> frozenset[str]:
        """The database's views that queries read, directly or through other views."""
        return self._look()[1].get(database, frozenset())

    def see_views(self, connection: Connection, database: str) -> dict[str, SeenView]:
        """These views as they are now, with the rights that are needed to read them."""
        places = {name: _place(name) for name in sorted(self.views(database))}
        found = read_view_rights(connection, places.values())
        return {name: _seen(found.get(place)) for name, place in places.items()}


def _place(name: str) -> tuple[str, str]:
    _, schema, view = TableName.parse(name).parts
    return schema, view


def _views_of(tables: Iterable[StreamTable]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for name in {d.name for t in tables for d in t.definition.dependencies if d.kind is SourceKind.VIEW}:
        if (database := TableName.parse(name).database) is not None:
            found.setdefault(database, set()).add(name)
    return {database: frozenset(names) for database, names in found.items()}


def _seen(view: ViewRights | None) -> SeenView:
    if view is None:
        return SeenView(mark="")
    reading, naming = view.reading_error(), view.naming_error()
    return SeenView(
        mark=view.mark,
        reading=RecordedError.of(reading) if reading is not None else None,
        naming=RecordedError.of(naming) if naming is not None else None,
    )


def mirror_object(capture: Capture, stale: str | None = None) -> LakeObject:
    """A mirror as one of the lake's tables."""
    return LakeObject(
        kind=ObjectKind.TABLE,
        name=TableName.parse(capture.name),
        location=capture.path,
        provider="delta",
        details=ObjectDetails(capture=capture.id, managed=False, stale=stale or None),
    )
