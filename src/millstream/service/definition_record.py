"""What the catalog records of a compiled query: enough to compile it again over what its sources were."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from millstream.catalog import Catalog
from millstream.catalog.models import Definition, Dependency, ObjectKind, SourceKind, StreamTable
from millstream.engine.worker import Workers
from millstream.lake import Compiled, Lake
from millstream.lake.objects import fingerprint
from millstream.naming import TableName
from millstream.service.dialects import Dialect
from millstream.service.source_changes import OBJECTS, fingerprint_of, place
from millstream.sql.sources import Source


class DefinitionRecord:
    """Makes the records of a lake's stream tables."""

    def __init__(self, lake: Lake, catalog: Catalog, workers: Workers) -> None:
        self._lake = lake
        self._catalog = catalog
        self._workers = workers

    def definition(
        self, compiled: Compiled, semantics: Mapping[str, str], before: StreamTable | None = None
    ) -> Definition:
        """A compiled query as it is recorded; `before` is what it takes the place of."""
        dependencies: list[Dependency] = []
        recorded: dict[str, object] = {}
        for source in compiled.sources.values():
            recorded[source.id], dependency = self._recorded(source, compiled)
            dependencies.append(dependency)
        for kind, texts in ((SourceKind.VIEW, compiled.views), (SourceKind.FUNCTION, compiled.functions)):
            for name in texts:
                mark = self._mark_of(kind, TableName.parse(name))
                dependencies.append(Dependency(kind=kind, name=name, source_id=name, fingerprint=mark))
        public = compiled.layouts[-1]
        body = {
            "stamp": uuid.uuid4().hex,
            "outputs": list(public.outputs),
            "hides_rows": public.hides_rows,
            "fingerprint": compiled.fingerprint,
            "is_faithful": compiled.is_faithful,
            "sources": recorded,
            "views": dict(compiled.views),
            "functions": dict(compiled.functions),
            "names": [[list(parts), name] for parts, name in compiled.names.items()],
            "reasons": list(compiled.reasons),
        }
        if compiled.dialect != Dialect.SPARK:
            body["translation"] = {"text": compiled.query, "notices": list(compiled.translation_notices)}
        if before is not None and before.is_populated:
            body["previous"] = _shown(before)
        return Definition(
            original_query=compiled.written,
            dialect=compiled.dialect,
            body=body,
            settings=dict(semantics),
            columns=tuple((c.name, c.type) for c in compiled.columns),
            dependencies=tuple(dependencies),
            functions_used=tuple(compiled.functions),
        )

    def _mark_of(self, kind: SourceKind, name: TableName) -> str:
        if name.database is not None:  # the tick compares it with the view's text in the database
            return fingerprint(self._lake.attached.relation(name.parts, exact=True).view_text or "")
        found = self._catalog.lake_object(OBJECTS[kind], name)
        return found.fingerprint if found else ""

    def _recorded(self, source: Source, compiled: Compiled) -> tuple[dict[str, object], Dependency]:
        name = TableName.parse(source.id)
        entry: dict[str, object] = {"columns": [[c.name, c.type] for c in source.columns], "obstacle": source.obstacle}
        upstream = self._catalog.find(name)
        mark = ""
        if upstream is not None:
            kind, where, mark = SourceKind.STREAM_TABLE, upstream.id, fingerprint_of(upstream)
        else:
            table = self._catalog.lake_object(ObjectKind.TABLE, name)
            assert table is not None
            kind, where = SourceKind.TABLE, place(table)
            if table.provider == "delta":
                entry["table_id"] = self._workers.here().store.snapshot(where).table_id
        used = compiled.used_columns.get(source.id, ())
        return entry, Dependency(kind=kind, name=source.id, source_id=where, columns_used=used, fingerprint=mark)


def _shown(table: StreamTable) -> Mapping[str, Any]:
    """What a table's view shows, kept for readers until another definition is loaded."""
    body = table.definition.body
    if table.public_stage.version is None and "previous" in body:
        previous: Mapping[str, Any] = body["previous"]
        return previous
    return {
        "path": table.public_stage.path,
        "outputs": body["outputs"],
        "hides_rows": body["hides_rows"],
        "columns": [name for name, _ in table.definition.columns],
    }
