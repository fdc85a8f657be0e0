"""Records a compiled query in the catalog, with what is needed to compile it again over the same sources."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from millstream.catalog import Catalog
from millstream.catalog.definition_body import DefinitionBody, RecordedSource, Translation
from millstream.catalog.models import Definition, Dependency, ObjectKind, SourceKind
from millstream.engine.worker import Workers
from millstream.lake import Compiled, Lake
from millstream.lake.dialects import Dialect
from millstream.lake.source_changes import OBJECTS, fingerprint_of, place
from millstream.naming import TableName
from millstream.sql.sources import Source


class DefinitionRecord:
    """Makes the definitions of a lake's stream tables."""

    def __init__(self, lake: Lake, catalog: Catalog, workers: Workers) -> None:
        self._lake = lake
        self._catalog = catalog
        self._workers = workers

    def definition(self, compiled: Compiled, semantics: Mapping[str, str]) -> Definition:
        """The definition that records a compiled query."""
        dependencies: list[Dependency] = []
        recorded: dict[str, RecordedSource] = {}
        for source in compiled.sources.values():
            recorded[source.id], dependency = self._recorded(source, compiled)
            dependencies.append(dependency)
        dependencies += [self._view(name, compiled) for name in compiled.views]
        for name in compiled.functions:
            mark = self._mark_of(SourceKind.FUNCTION, TableName.parse(name))
            dependencies.append(Dependency(kind=SourceKind.FUNCTION, name=name, source_id=name, fingerprint=mark))
        public = compiled.layouts[-1]
        translation = None
        if compiled.dialect != Dialect.SPARK:
            translation = Translation(text=compiled.query, notices=compiled.translation_notices)
        body = DefinitionBody(
            stamp=uuid.uuid4().hex,
            outputs=tuple(public.outputs),
            hides_rows=public.hides_rows,
            fingerprint=compiled.fingerprint,
            is_faithful=compiled.is_faithful,
            sources=recorded,
            views=dict(compiled.views),
            functions=dict(compiled.functions),
            names=dict(compiled.names),
            reasons=tuple(compiled.reasons),
            translation=translation,
        )
        return Definition(
            original_query=compiled.written,
            dialect=compiled.dialect,
            body=body,
            settings=dict(semantics),
            columns=tuple((c.name, c.type) for c in compiled.columns),
            dependencies=tuple(dependencies),
            functions_used=tuple(compiled.functions),
        )

    def can_record(self, name: str) -> bool:
        """Whether a source of a query is known to the catalog."""
        parsed = TableName.parse(name)
        return self._catalog.find(parsed) is not None or self._catalog.lake_object(ObjectKind.TABLE, parsed) is not None

    def _view(self, name: str, compiled: Compiled) -> Dependency:
        """The dependency on a view. For a view of an attached database, the fingerprint is that of the compiled text.

        Ticks compare it with the text they find. Reading the text again here would hide a replacement in between.
        """
        if TableName.parse(name).database is None:
            mark = self._mark_of(SourceKind.VIEW, TableName.parse(name))
            return Dependency(kind=SourceKind.VIEW, name=name, source_id=name, fingerprint=mark)
        view = compiled.attached_views[name]
        assert view.mark is not None
        used = tuple(c.name for c in view.columns or ()) if name in compiled.named_views else ()
        return Dependency(kind=SourceKind.VIEW, name=name, source_id=name, columns_used=used, fingerprint=view.mark)

    def _mark_of(self, kind: SourceKind, name: TableName) -> str:
        found = self._catalog.lake_object(OBJECTS[kind], name)
        return found.fingerprint if found else ""

    def _recorded(self, source: Source, compiled: Compiled) -> tuple[RecordedSource, Dependency]:
        name = TableName.parse(source.id)
        upstream = self._catalog.find(name)
        mark, table_id = "", None
        if upstream is not None:
            kind, where, mark = SourceKind.STREAM_TABLE, upstream.id, fingerprint_of(upstream)
        else:
            table = self._catalog.lake_object(ObjectKind.TABLE, name)
            assert table is not None
            kind, where = SourceKind.TABLE, place(table)
            if table.provider == "delta":
                table_id = self._workers.here().store.snapshot(where).table_id
        used = compiled.used_columns.get(source.id, ())
        columns = tuple((c.name, c.type) for c in source.columns)
        entry = RecordedSource(columns=columns, obstacle=source.obstacle, table_id=table_id)
        return entry, Dependency(kind=kind, name=source.id, source_id=where, columns_used=used, fingerprint=mark)
