"""Creating, altering, dropping and recompiling stream tables. Nothing half-made is left behind by a failure."""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.models import (
    Definition,
    Dependency,
    NewStreamTable,
    ObjectKind,
    SourceKind,
    Stage,
    StreamTable,
    new_id,
)
from millstream.diff.plan import Layout
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled, Lake, compile_query
from millstream.lake.objects import fingerprint
from millstream.naming import TableName, quote
from millstream.ops import Column
from millstream.results import RefreshMode, Status
from millstream.scheduler.schedule import Schedule
from millstream.settings import Settings
from millstream.sql.sources import Source, View

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Definitions:
    """Stream tables as definitions: from a query to catalog entries and stored tables, and back."""

    def __init__(self, lake: Lake, catalog: Catalog, workers: Workers, settings: Settings) -> None:
        self._lake = lake
        self._catalog = catalog
        self._workers = workers
        self._settings = settings
        self._cache: dict[tuple[str, int], tuple[int, Compiled]] = {}

    # Compiling

    def compile(self, query: str, mode: RefreshMode, dialect: str | None = None) -> Compiled:
        """Compile a query against the lake as it is now."""
        _check_dialect(dialect)
        self._lake.sync()
        return compile_query(query, mode, _Recording(self._lake, self._settings), self._workers.here().analyzer)

    def compiled(self, table: StreamTable) -> Compiled:
        """The compiled definition of a table, over the columns its sources had when it was created."""
        key, generation = (table.id, table.definition_version), self._catalog.generation()
        cached = self._cache.get(key)
        if cached is not None and (cached[0] == generation or self._views_are_current(table)):
            self._cache[key] = (generation, cached[1])
            return cached[1]
        if not self._views_are_current(table):
            return self.rebind(table)[1]
        self._lake.sync()
        worker = self._workers.here()
        worker.use(table.definition.settings)
        sources = _AsRecorded(self._lake, self._settings, table.definition.body["sources"])
        compiled = compile_query(table.definition.original_query, table.refresh_mode, sources, worker.analyzer)
        self._cache[key] = (generation, compiled)
        return compiled

    def _views_are_current(self, table: StreamTable) -> bool:
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.VIEW:
                view = self._catalog.lake_object(ObjectKind.VIEW, TableName.parse(dependency.name))
                if view is None or view.fingerprint != dependency.fingerprint:
                    return False
        return True

    def rebind(self, table: StreamTable) -> tuple[StreamTable, Compiled]:
        """Compile a definition anew after a source's columns, or a view, changed; the next refresh starts over.

        Raises:
            MillstreamError: SOURCE_CHANGED if the query no longer fits; the table is then in ERROR.
        """
        self._lake.sync()
        recorded = table.definition.body["sources"]
        worker = self._workers.here()
        worker.use(table.definition.settings)
        try:
            sources = _AsRecorded(self._lake, self._settings, recorded, may_change=True)
            compiled = compile_query(table.definition.original_query, table.refresh_mode, sources, worker.analyzer)
            if [c.name for c in compiled.columns] != [n for n, _ in table.definition.columns]:
                raise MillstreamError(Code.SOURCE_CHANGED, "the query now has other output columns")
        except MillstreamError as cause:
            error = MillstreamError(
                Code.SOURCE_CHANGED,
                f"what {table.name} reads has changed and its query no longer fits: {cause.message}",
                hint=f"ALTER STREAM TABLE {table.name} AS <a query that fits>, or undo the change",
            )
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")
            raise error from cause
        stages = self._create_storage(table.name, compiled)
        definition = self._definition(compiled, table.definition.dialect, table.definition.settings)
        updated = self._catalog.recompile_stream_table(table.id, definition, stages)
        self._catalog.mark_needs_reinit(table.id, "SOURCE_CHANGED: columns or a view it reads changed")
        found = self._catalog.find_by_id(updated.id)
        assert found is not None
        self._cache[(table.id, found.definition_version)] = (self._catalog.generation(), compiled)
        self._remove_storage(table.stages)
        return found, compiled

    # Creating

    def create(
        self, name: TableName, query: str, schedule: str, mode: RefreshMode, dialect: str | None
    ) -> tuple[StreamTable, Compiled]:
        """Record a stream table with empty stored tables; it is filled by its first refresh."""
        parsed = Schedule.parse(schedule, min_seconds=self._settings.min_schedule_seconds)
        self._lake.sync()
        if self._catalog.find(name) is not None:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"a stream table named {name} exists",
                hint="CREATE OR REPLACE STREAM TABLE replaces it",
            )
        self._lake.require_free(name)
        compiled = self.compile(query, mode, dialect)
        self._switch_feeds_on(compiled)
        stages = self._create_storage(name, compiled)
        try:
            table = self._catalog.create_stream_table(
                NewStreamTable(
                    id=new_id(),
                    name=name,
                    schedule=parsed.text,
                    refresh_mode=mode,
                    definition=self._definition(compiled, "spark", self._workers.semantics()),
                    stages=stages,
                )
            )
        except BaseException:
            self._remove_storage(stages)
            raise
        self._cache[(table.id, table.definition_version)] = (self._catalog.generation(), compiled)
        self._lake.sync()
        return table, compiled

    def redefine(self, table: StreamTable, query: str, mode: RefreshMode | None = None) -> StreamTable:
        """Give a stream table another query, or another mode; it and its readers are reinitialised at their next refresh.

        Raises:
            MillstreamError: INCOMPATIBLE_CHANGE if the columns differ and something reads it; CYCLE.
        """
        compiled = self.compile(query, mode or table.refresh_mode)
        old = [(n.lower(), t) for n, t in table.definition.columns]
        readers = self._catalog.dependents(table.name)
        if readers and [(c.name.lower(), c.type) for c in compiled.columns] != old:
            raise MillstreamError(
                Code.INCOMPATIBLE_CHANGE,
                f"the new query has other columns, and {', '.join(map(str, readers))} read {table.name}",
                hint="keep the names and types of the columns, or drop the readers first",
            )
        self._refuse_cycle(table, compiled)
        self._switch_feeds_on(compiled)
        stages = self._create_storage(table.name, compiled)
        try:
            definition = self._definition(compiled, table.definition.dialect, self._workers.semantics())
            updated = self._catalog.alter_stream_table(
                table.name, refresh_mode=mode, definition=definition, stages=stages
            )
        except BaseException:
            self._remove_storage(stages)
            raise
        self._remove_storage(table.stages)
        self._lake.sync()
        return updated

    def drop(self, name: TableName, *, cascade: bool) -> tuple[StreamTable, ...]:
        """Forget a stream table and delete what it stored."""
        dropped = self._catalog.drop_stream_table(name, cascade=cascade)
        self._lake.sync()
        for table in dropped:
            self._remove_storage(table.stages)
        return dropped

    def _refuse_cycle(self, table: StreamTable, compiled: Compiled) -> None:
        if str(table.name) in compiled.sources:
            raise MillstreamError(Code.CYCLE, f"{table.name} would read itself", hint="read its sources instead")

    # The catalog's record

    def _definition(self, compiled: Compiled, dialect: str, semantics: Mapping[str, str]) -> Definition:
        dependencies: list[Dependency] = []
        recorded: dict[str, object] = {}
        for source in compiled.sources.values():
            name = TableName.parse(source.id)
            upstream = self._catalog.find(name)
            entry: dict[str, object] = {"columns": [[c.name, c.type] for c in source.columns]}
            if upstream is not None:
                kind, where = SourceKind.STREAM_TABLE, upstream.id
            else:
                table = self._catalog.lake_object(ObjectKind.TABLE, name)
                assert table is not None
                kind, where = SourceKind.TABLE, table.location or ""
                if table.provider == "delta":
                    entry["table_id"] = self._workers.here().store.snapshot(where).table_id
            recorded[source.id] = entry
            dependencies.append(
                Dependency(
                    kind=kind, name=source.id, source_id=where, columns_used=compiled.used_columns.get(source.id, ())
                )
            )
        dependencies += [
            Dependency(kind=SourceKind.VIEW, name=n, source_id=n, fingerprint=fingerprint(text))
            for n, text in compiled.views.items()
        ]
        public = compiled.layouts[-1]
        return Definition(
            original_query=compiled.query,
            dialect=dialect,
            body={
                "outputs": list(public.outputs),
                "hides_rows": public.hides_rows,
                "fingerprint": compiled.fingerprint,
                "sources": recorded,
                "reasons": list(compiled.reasons),
            },
            settings=dict(semantics),
            columns=tuple((c.name, c.type) for c in compiled.columns),
            dependencies=tuple(dependencies),
        )

    # Stored tables

    def _create_storage(self, name: TableName, compiled: Compiled) -> tuple[Stage, ...]:
        root = self._lake.root / "stream_tables" / f"{name}-{uuid.uuid4().hex[:8]}"
        store = self._workers.here().store
        stages: list[Stage] = []
        try:
            for ordinal, layout in enumerate(compiled.layouts):
                is_public = ordinal == len(compiled.layouts) - 1
                path = str(root / ("result" if is_public else f"stage_{ordinal + 1}"))
                store.create(path, self._schema(layout), stats_columns=layout.key)
                stages.append(Stage(id=new_id(), ordinal=ordinal, path=path, is_public=is_public))
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        return tuple(stages)

    def _schema(self, layout: Layout) -> StructType:
        """Spark's types from their texts, by an analysis that starts no job."""
        items = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in layout.columns)
        return self._workers.here().spark.sql(f"SELECT {items}").schema

    def _remove_storage(self, stages: Sequence[Stage]) -> None:
        for parent in {Path(s.path).parent for s in stages}:
            if parent.is_relative_to(self._lake.root / "stream_tables"):
                shutil.rmtree(parent, ignore_errors=True)

    def _switch_feeds_on(self, compiled: Compiled) -> None:
        """Have the sources record their changes, and say so: it alters the user's table."""
        if not compiled.is_incremental:
            return
        store = self._workers.here().store
        for source in compiled.sources.values():
            table = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(source.id))
            if table is not None and table.location and not store.snapshot(table.location).has_change_feed:
                store.enable_change_data_feed(table.location)
                warnings.warn(
                    f"the change data feed of {source.id} was switched on (delta.enableChangeDataFeed); "
                    "set enable_change_data_feed = false to forbid this",
                    ChangeFeedWarning,
                    stacklevel=5,
                )


class ChangeFeedWarning(UserWarning):
    """A source table was altered so that it records its changes."""


class _Recording:
    """The lake as sources, with whether each table records its changes."""

    def __init__(self, lake: Lake, settings: Settings) -> None:
        self._lake = lake
        self._settings = settings

    def find(self, parts: Sequence[str]) -> Source | View | None:
        return self._lake.find(parts)


class _AsRecorded(_Recording):
    """The lake as it was when a definition was made: later columns are not seen, so that `*` keeps its meaning."""

    def __init__(
        self, lake: Lake, settings: Settings, recorded: Mapping[str, Mapping[str, object]], *, may_change: bool = False
    ) -> None:
        super().__init__(lake, settings)
        self._recorded = recorded
        self._may_change = may_change

    def find(self, parts: Sequence[str]) -> Source | View | None:
        found = super().find(parts)
        if not isinstance(found, Source) or found.id not in self._recorded:
            return found
        columns = self._recorded[found.id]["columns"]
        assert isinstance(columns, list)
        if not self._may_change:
            return Source(found.id, tuple(Column(n, t) for n, t in columns))
        now = {c.name.lower(): c for c in found.columns}
        kept = tuple(now[n.lower()] for n, _ in columns if n.lower() in now)
        return Source(found.id, kept)


def _check_dialect(dialect: str | None) -> None:
    if dialect not in (None, "spark"):
        raise MillstreamError(
            Code.UNSUPPORTED_SQL, f"the dialect {dialect!r} is not available", hint="leave it out, or use 'spark'"
        )


def parse_mode(text: str | RefreshMode) -> RefreshMode:
    """A refresh mode from its name, in any case.

    Raises:
        MillstreamError: MODE_INVALID.
    """
    try:
        return RefreshMode(str(text).upper().replace("_", " "))
    except ValueError as e:
        raise MillstreamError(
            Code.MODE_INVALID, f"{text!r} is not a refresh mode", hint="use " + ", ".join(RefreshMode)
        ) from e


def parse_status(text: str | Status) -> Status:
    """A status a user may set.

    Raises:
        MillstreamError: STATUS_INVALID.
    """
    if str(text).upper() not in {Status.ACTIVE, Status.SUSPENDED}:
        raise MillstreamError(Code.STATUS_INVALID, f"{text!r} cannot be set", hint="use ACTIVE or SUSPENDED")
    return Status(str(text).upper())
