"""Telling the stream tables that read a database what became of its tables and views."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millstream.catalog import Catalog
from millstream.catalog.attached import MISSING, STALE, AttachedDatabase, Capture
from millstream.catalog.models import LakeObject, ObjectKind, SourceKind, StreamTable
from millstream.lake.objects import fingerprint
from millstream.naming import TableName
from millstream.refresh.capture.verdicts import Answer
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.relations import find_named

CAPTURE = "capture"
"""The detail of a lake object that is a mirror: the capture's id."""


class Readers:
    """The stream tables of a lake, looked at again only when the catalog's generation has moved."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._guard = threading.Lock()
        self._seen: tuple[int, tuple[StreamTable, ...]] | None = None

    @property
    def _tables(self) -> tuple[StreamTable, ...]:
        generation = self._catalog.generation()
        with self._guard:
            if self._seen is None or self._seen[0] != generation:
                self._seen = (generation, self._catalog.list())
            return self._seen[1]

    def unread(self, captures: Sequence[Capture]) -> list[Capture]:
        """Those of some captures that no stream table reads."""
        if not captures:
            return []
        read = {d.name for table in self._tables for d in table.definition.dependencies}
        return [c for c in captures if c.name not in read]

    def reinitialise(self, database: str, reason: str) -> None:
        """Have all that read a database start over."""
        for table in self._tables:
            if any(TableName.parse(d.name).database == database for d in table.definition.dependencies):
                self._catalog.mark_needs_reinit(table.id, reason)

    def tell(self, capture: Capture, answer: Answer, reason: str, *, is_back: bool) -> None:
        """Let them find, by the lake's object for the table, that it is gone or another one, or back again."""
        name = TableName.parse(capture.name)
        if answer is Answer.MISS:
            if not capture.details.get(MISSING):
                self._catalog.drop_lake_object(ObjectKind.TABLE, name)
        elif answer is Answer.GIVE_UP:
            if not capture.details.get(STALE) or capture.details.get(MISSING):
                self._catalog.put_lake_object(mirror_object(capture, reason), replace=True)
        elif is_back and answer is not Answer.LEAVE:
            self._catalog.put_lake_object(mirror_object(capture), replace=True)

    def views(self, connection: Connection, database: AttachedDatabase) -> dict[str, str]:
        """The fingerprints of the database's views that queries read; empty for one that is gone."""
        read = {d.name for t in self._tables for d in t.definition.dependencies if d.kind is SourceKind.VIEW}
        names = {name for name in read if TableName.parse(name).database == database.name}
        found: dict[str, str] = {}
        for name in sorted(names):
            _, schema, view = TableName.parse(name).parts
            relation = find_named(connection, schema, view)
            found[name] = fingerprint(relation.view_text or "") if relation is not None else ""
        return found


def mirror_object(capture: Capture, stale: str | None = None) -> LakeObject:
    """A mirror as one of the lake's tables."""
    return LakeObject(
        kind=ObjectKind.TABLE,
        name=TableName.parse(capture.name),
        location=capture.path,
        provider="delta",
        details={CAPTURE: capture.id, "managed": False, **({STALE: stale} if stale else {})},
    )
