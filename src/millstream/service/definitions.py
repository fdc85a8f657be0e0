"""Creating, altering, dropping and recompiling stream tables. Nothing half-made is left behind by a failure."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.catalog import Catalog
from millstream.catalog.attached import STALE, VIEWS
from millstream.catalog.models import (
    Definition,
    Dependency,
    LakeObject,
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
from millstream.results import RefreshMode, Status
from millstream.scheduler.schedule import Schedule
from millstream.service.captured import CapturedTables
from millstream.service.dialects import (
    Dialect,
    as_written,
    default_dialect,
    naming_the_dialect,
    parse_dialect,
    pointing_into,
    require_ansi,
)
from millstream.service.notices import ChangeFeedWarning, FullRefreshWarning, NoticeWarning, tell
from millstream.service.recorded import AsItIs, AsRecorded
from millstream.settings import Settings
from millstream.sql.parse import parse_query
from millstream.sql.postgres import translate
from millstream.sql.recursive_text import with_union_all
from millstream.sql.refused import refuse_in_every_mode
from millstream.sql.sources import Source
from millstream.sql.statements import Effect, Other, parse_statement

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OBJECTS = {SourceKind.VIEW: ObjectKind.VIEW, SourceKind.FUNCTION: ObjectKind.FUNCTION}


# what says nothing about whether a query fits
_PASSING = {
    Code.DATABASE_UNREACHABLE,
    Code.LOCK_TIMEOUT,
    Code.SNAPSHOT_LOST,
    Code.PRIVILEGE_MISSING,
    Code.LAKE_UNWRITABLE,
}


class Definitions:
    """Stream tables as definitions: from a query to catalog entries and stored tables, and back."""

    def __init__(
        self, lake: Lake, catalog: Catalog, workers: Workers, captured: CapturedTables, settings: Settings
    ) -> None:
        self._captured = captured
        self._lake = lake
        self._catalog = catalog
        self._workers = workers
        self._settings = settings
        self._cache: dict[tuple[str, str], Compiled] = {}
        self._current_at: dict[tuple[str, str], int] = {}

    # Compiling

    def compile(self, query: str, mode: RefreshMode, dialect: str | None = None) -> Compiled:
        """Compile a query against the lake as it is now, under the settings of the user's session."""
        if parse_dialect(dialect or self.default_dialect(query)) is not Dialect.SPARK:
            with nullcontext() if dialect else naming_the_dialect():
                return self._compile_translated(query, mode, AsItIs(self._lake, self._feed_obstacle))
        _require_query(query)
        self._lake.sync()
        worker = self._workers.here()
        worker.use(self._workers.semantics())
        _refuse_locks(query)
        analysed = with_union_all(self._lake.analysable(query))
        with pointing_into(query, analysed):
            worker.analyzer.describe_text(analysed)  # errors that point into the user's own text
        sources = AsItIs(self._lake, self._feed_obstacle)
        try:
            return compile_query(query, mode, sources, worker.analyzer, self._functions(query, sources))
        except MillstreamError as error:
            if error.code is not Code.SYNTAX_ERROR:
                raise
            raise MillstreamError(
                Code.UNSUPPORTED_SQL,
                f"Spark understands the query, millstream does not: {error.message}",
                position=error.position,
                sql=error.sql,
                hint="write it in another way, or put it into a table",
            ) from error

    def default_dialect(self, query: str) -> Dialect:
        """The dialect of a query whose dialect is not given."""
        self._lake.sync()
        return default_dialect(query, self._lake)

    def _compile_translated(
        self, query: str, mode: RefreshMode, sources: AsItIs, semantics: Mapping[str, str] | None = None
    ) -> Compiled:
        """Translate a query of PostgreSQL's and compile what it becomes; errors speak of what the user wrote."""
        self._lake.sync()
        worker = self._workers.here()
        worker.use(semantics if semantics is not None else self._workers.semantics())
        require_ansi(semantics if semantics is not None else self._workers.semantics())
        translation = translate(query, sources, worker.analyzer)
        text = translation.spark_text
        analysed = with_union_all(self._lake.analysable(text))
        with pointing_into(query, text, analysed):
            worker.analyzer.describe_text(analysed)
            compiled = compile_query(text, mode, sources, worker.analyzer, self._functions(text, sources))
        return as_written(compiled, query, translation.notices)

    def compiled(self, table: StreamTable) -> Compiled:
        """The compiled definition of a table, over what its sources and views were when it was made."""
        key = _key(table)
        if key not in self._cache:
            recorded = AsRecorded(table.definition.body)
            functions = table.definition.body["functions"]
            try:
                self._cache[key] = self._compile_again(table, table.refresh_mode, recorded, functions)
            except MillstreamError as error:
                if (about := self._about_functions(table, error)) is None:
                    raise
                raise about from error
        return self._cache[key]

    def _about_functions(self, table: StreamTable, error: MillstreamError) -> MillstreamError | None:
        """Of all a definition has recorded, only its SQL functions are looked up in the lake as it is."""
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.FUNCTION and (change := self._change_of(dependency)):
                return MillstreamError(
                    Code.SOURCE_CHANGED,
                    f"{table.name} calls the SQL function {dependency.name}, which {change}: {error.message}",
                    hint=f"create {dependency.name} again, or ALTER STREAM TABLE {table.name} AS <a query that fits>",
                )
        return None

    def _compile_again(
        self, table: StreamTable, mode: RefreshMode, sources: AsItIs | AsRecorded, functions: Mapping[str, str]
    ) -> Compiled:
        self._lake.sync()
        worker = self._workers.here()
        worker.use(table.definition.settings)
        translation = table.definition.body.get("translation")
        compiled = compile_query(
            translation["text"] if translation else table.definition.original_query,
            mode,
            sources,
            worker.analyzer,
            functions,
            is_faithful=table.definition.body["is_faithful"],
        )
        if translation is None:
            return compiled
        return as_written(compiled, table.definition.original_query, translation["notices"])

    def _functions(self, query: str, sources: AsItIs) -> dict[str, str]:
        return self._lake.functions_in([query, *sources.view_texts(query)])

    # Following what a definition reads

    def outdated(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> str | None:
        """What among the things a table reads is no longer what its definition was compiled for."""
        generation, key = self._catalog.generation(), _key(table)
        if self._current_at.get(key) != generation:
            for dependency in table.definition.dependencies:
                if change := self._change_of(dependency):
                    return f"SOURCE_CHANGED: {dependency.name} {change}"
            self._current_at[key] = generation
        if table.definition.body["fingerprint"] != compiled.fingerprint:
            return "LAYOUT: the stored table was made by another version of millstream"
        is_empty = table.public_stage.version is None
        for source in compiled.sources.values():
            version = versions.get(source.id)
            if version is None:
                continue
            if self._is_another(source, table, paths[source.id], version):
                return f"SOURCE_CHANGED: {source.id} was replaced by another table"
            is_read = version == table.frontier.get(source.id) and not is_empty
            if not is_read and (change := self._misfit(source, compiled, paths[source.id], version)):
                return f"SOURCE_CHANGED: {source.id} {change}"
        return None

    def _change_of(self, dependency: Dependency) -> str | None:
        """By what the catalog says: of the views, functions and stream tables, and of where tables lie."""
        name = TableName.parse(dependency.name)
        if dependency.kind is SourceKind.STREAM_TABLE:
            upstream = self._catalog.find(name)
            same = upstream is not None and _fingerprint_of(upstream) == dependency.fingerprint
            return None if same else "has another definition"
        if dependency.kind is SourceKind.TABLE:
            found = self._catalog.lake_object(ObjectKind.TABLE, name)
            if found is not None and _place(found) != dependency.source_id:
                return "lies elsewhere"
            return str(found.details[STALE]) if found is not None and STALE in found.details else None
        if name.database is not None:
            return self._change_of_attached_view(dependency, name.database)
        found = self._catalog.lake_object(_OBJECTS[dependency.kind], name)
        if found is None:
            return "was dropped"
        return None if found.fingerprint == dependency.fingerprint else "was replaced"

    def _change_of_attached_view(self, dependency: Dependency, database: str) -> str | None:
        """By what the last tick has seen."""
        attached = self._catalog.find_database(database)
        seen = attached.details.get(VIEWS, {}).get(dependency.name) if attached is not None else None
        if seen is None or seen == dependency.fingerprint:
            return None
        return "was replaced" if seen else "was dropped"

    def _is_another(self, source: Source, table: StreamTable, path: str, version: int) -> bool:
        """Whether a table was dropped and made anew, perhaps with as many commits as the old one had."""
        known = table.definition.body["sources"][source.id].get("table_id")
        return known is not None and self._workers.here().store.table_id(path, version) != known

    def _misfit(self, source: Source, compiled: Compiled, path: str, version: int) -> str | None:
        """Which of the columns in use is no longer what it was."""
        snapshot = self._workers.here().store.snapshot(path, version)
        now = {name.lower(): type_ for name, type_, _ in snapshot.schema}
        before = {c.name.lower(): c.type for c in source.columns}
        for column in compiled.used_columns[source.id]:
            if column.lower() not in now:
                return f"has lost its column {column}"
            if now[column.lower()] != before[column.lower()]:
                return f"has changed its column {column} from {before[column.lower()]} to {now[column.lower()]}"
        return None

    def rebind(self, table: StreamTable, reason: str) -> tuple[StreamTable, Compiled]:
        """Compile a definition anew after what it reads has changed; the next refresh starts over.

        The stored table stays if its layout does, else the old one stays readable until `settle`.

        Raises:
            MillstreamError: SOURCE_CHANGED if the query no longer fits; the table is then in ERROR.
        """
        try:
            live = AsItIs(self._lake, self._feed_obstacle, table.definition.body["sources"])
            if table.definition.dialect != Dialect.SPARK:  # the types it was translated for may have changed
                compiled = self._compile_translated(
                    table.definition.original_query, table.refresh_mode, live, table.definition.settings
                )
            else:
                functions = self._functions(table.definition.original_query, live)
                compiled = self._compile_again(table, table.refresh_mode, live, functions)
            if [c.name for c in compiled.columns] != [n for n, _ in table.definition.columns]:
                raise MillstreamError(Code.SOURCE_CHANGED, "the query now has other output columns")
            self._refuse_cycle(table, compiled)
            with self._captured.beginning(compiled.used_columns):
                self._switch_feeds_on(compiled)
                return self._rebound(table, compiled, reason)
        except MillstreamError as cause:
            if cause.code in _PASSING:
                raise
            error = MillstreamError(
                Code.SOURCE_CHANGED,
                f"what {table.name} reads has changed and its query no longer fits: {cause.message}",
                hint=f"ALTER STREAM TABLE {table.name} AS <a query that fits>, or undo the change",
            )
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")
            raise error from cause

    def _rebound(self, table: StreamTable, compiled: Compiled, reason: str) -> tuple[StreamTable, Compiled]:
        stages = self._new_stages(table, compiled)
        definition = self._definition(compiled, table.definition.settings, table)
        self._catalog.recompile_stream_table(table.id, definition, stages)
        self._catalog.mark_needs_reinit(table.id, reason)
        found = self._catalog.find_by_id(table.id)
        assert found is not None
        self._cache[_key(found)] = compiled
        return found, compiled

    def restore(self, table: StreamTable) -> None:
        """Undo `rebind` after the refresh that needed it has failed."""
        now = self._catalog.find_by_id(table.id)
        if now is None or now.public_stage.path == table.public_stage.path:
            return
        self._catalog.recompile_stream_table(table.id, table.definition, table.stages)
        self._remove_storage(now.stages)

    def settle(self, table: StreamTable) -> None:
        """Show what a new definition has loaded, and remove what earlier ones, or crashes, have left."""
        body = {k: v for k, v in table.definition.body.items() if k != "previous"}
        self._catalog.recompile_stream_table(table.id, replace(table.definition, body=body))
        self._lake.sync()
        root = self._lake.root / "stream_tables"
        for directory in root.glob(f"{table.name}-????????"):
            if str(directory) not in {str(Path(s.path).parent) for s in table.stages}:
                shutil.rmtree(directory, ignore_errors=True)

    def watch(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> None:
        """Have the sources record their changes again, should somebody have switched that off."""
        store, is_allowed = self._workers.here().store, self._settings.enable_change_data_feed
        for name in compiled.sources if compiled.is_incremental and is_allowed else ():
            moved = name in versions and table.frontier.get(name) != versions[name]
            if moved and not store.snapshot(paths[name], versions[name]).has_change_feed:
                self._switch_on(name, paths[name])

    def land(self, item: LakeObject) -> None:
        """Copy a table that records no changes into the lake."""
        self._lake.sync()
        self._lake.land(item)

    # Creating, altering, dropping

    def create(self, name: TableName, query: str, schedule: str, mode: RefreshMode, dialect: str | None) -> StreamTable:
        """Record a stream table with empty stored tables; it is filled by its first refresh."""
        parsed = Schedule.parse(schedule, min_seconds=self._settings.min_schedule_seconds)
        if name.database is not None:
            raise MillstreamError(
                Code.NAME_INVALID,
                f"{name} is no name for a stream table",
                hint="use name or schema.name; a stream table lives in the lake",
            )
        self._lake.sync()
        if self._catalog.find(name) is not None:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"a stream table named {name} exists",
                hint="CREATE OR REPLACE STREAM TABLE replaces it",
            )
        self._lake.require_free(name)
        compiled = self.compile(query, mode, dialect)
        with self._captured.beginning(compiled.used_columns):
            self._switch_feeds_on(compiled)
            stages = self._create_storage(name, compiled)
            try:
                table = self._catalog.create_stream_table(
                    NewStreamTable(
                        id=new_id(),
                        name=name,
                        schedule=parsed.text,
                        refresh_mode=mode,
                        definition=self._definition(compiled, self._workers.semantics()),
                        stages=stages,
                    )
                )
            except BaseException:
                self._remove_storage(stages)
                raise
        self._cache[_key(table)] = compiled
        self._lake.sync()
        _tell_about(name, compiled, mode)
        return table

    def redefine(
        self,
        table: StreamTable,
        query: str,
        mode: RefreshMode | None = None,
        dialect: str | None = None,
        *,
        accept: Callable[[StreamTable, Compiled], None],
    ) -> StreamTable:
        """Give a stream table another query; it and its readers are reinitialised at their next refresh.

        Args:
            dialect: of the new query; that of the old one unless given.
            accept: raises if the new query's result is not fit for what depends on it outside of the lake.

        Raises:
            MillstreamError: INCOMPATIBLE_CHANGE if the columns differ and something reads it; CYCLE.
        """
        compiled = self.compile(query, mode or table.refresh_mode, dialect or table.definition.dialect)
        self._refuse_cycle(table, compiled)
        old = [(n.lower(), t) for n, t in table.definition.columns]
        readers = self._catalog.dependents(table.name)
        if readers and [(c.name.lower(), c.type) for c in compiled.columns] != old:
            raise MillstreamError(
                Code.INCOMPATIBLE_CHANGE,
                f"the new query has other columns, and {', '.join(map(str, readers))} read {table.name}",
                hint="keep the names and types of the columns, or drop the readers first",
            )
        accept(table, compiled)
        return self._replace(table, compiled, self._workers.semantics(), mode)

    def change_mode(self, table: StreamTable, mode: RefreshMode) -> StreamTable:
        """Give a stream table another refresh mode; it starts over only where it has to be stored otherwise."""
        functions = table.definition.body["functions"]
        recorded = AsRecorded(table.definition.body)
        compiled = self._compile_again(table, mode, recorded, functions)
        if compiled.fingerprint == table.definition.body["fingerprint"]:
            self._switch_feeds_on(compiled)
            return self._catalog.alter_stream_table(table.name, refresh_mode=mode)
        return self._replace(table, compiled, table.definition.settings, mode)

    def _replace(
        self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str], mode: RefreshMode | None
    ) -> StreamTable:
        with self._captured.beginning(compiled.used_columns):
            self._switch_feeds_on(compiled)
            stages = self._new_stages(table, compiled)
            try:
                definition = self._definition(compiled, semantics, table)
                updated = self._catalog.alter_stream_table(
                    table.name, refresh_mode=mode, definition=definition, stages=stages
                )
            except BaseException:
                if stages is not None:
                    self._remove_storage(stages)
                raise
        self._captured.end_unread(_read_by(table))
        self._cache[_key(updated)] = compiled
        self._lake.sync()
        _tell_about(table.name, compiled, mode or table.refresh_mode)
        return updated

    def drop(self, name: TableName, *, cascade: bool) -> tuple[StreamTable, ...]:
        """Forget a stream table and delete what it stored."""
        dropped = self._catalog.drop_stream_table(name, cascade=cascade)
        self._lake.sync()
        for table in dropped:
            self._remove_storage(table.stages)
        self._captured.end_unread({name for table in dropped for name in _read_by(table)})
        return dropped

    def _refuse_cycle(self, table: StreamTable, compiled: Compiled) -> None:
        """Before anything else is said about the new query; the catalog checks again when it is recorded."""
        pending, seen = list(compiled.sources), set[str]()
        while pending:
            name = pending.pop()
            if name == str(table.name):
                raise MillstreamError(Code.CYCLE, f"{table.name} would read itself", hint="read its sources instead")
            if name not in seen:
                seen.add(name)
                upstream = self._catalog.find(TableName.parse(name))
                pending += [d.name for d in upstream.definition.dependencies] if upstream else []

    # The catalog's record

    def _definition(
        self, compiled: Compiled, semantics: Mapping[str, str], before: StreamTable | None = None
    ) -> Definition:
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
            return fingerprint(self._lake.attached.relation(name.parts).view_text or "")
        found = self._catalog.lake_object(_OBJECTS[kind], name)
        return found.fingerprint if found else ""

    def _recorded(self, source: Source, compiled: Compiled) -> tuple[dict[str, object], Dependency]:
        name = TableName.parse(source.id)
        entry: dict[str, object] = {"columns": [[c.name, c.type] for c in source.columns], "obstacle": source.obstacle}
        upstream = self._catalog.find(name)
        mark = ""
        if upstream is not None:
            kind, where, mark = SourceKind.STREAM_TABLE, upstream.id, _fingerprint_of(upstream)
        else:
            table = self._catalog.lake_object(ObjectKind.TABLE, name)
            assert table is not None
            kind, where = SourceKind.TABLE, _place(table)
            if table.provider == "delta":
                entry["table_id"] = self._workers.here().store.snapshot(where).table_id
        used = compiled.used_columns.get(source.id, ())
        return entry, Dependency(kind=kind, name=source.id, source_id=where, columns_used=used, fingerprint=mark)

    # Stored tables

    def _new_stages(self, table: StreamTable, compiled: Compiled) -> tuple[Stage, ...] | None:
        """Stored tables for another definition; None if those of the present one suit it."""
        same = compiled.fingerprint == table.definition.body["fingerprint"]
        return None if same else self._create_storage(table.name, compiled)

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

    # Change data feeds

    def _switch_feeds_on(self, compiled: Compiled) -> None:
        """Have the sources record their changes, and say so: it alters the user's table."""
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
            self._switch_on(source.id, table.location)

    def _switch_on(self, name: str, path: str) -> None:
        self._workers.here().store.enable_change_data_feed(path)
        tell(
            f"the change data feed of {name} was switched on (delta.enableChangeDataFeed); "
            "set enable_change_data_feed = false to forbid this",
            ChangeFeedWarning,
        )

    def _feed_obstacle(self, name: str) -> str | None:
        """Why a Delta table's changes cannot be read; None where they can, or can be made to."""
        table = self._catalog.lake_object(ObjectKind.TABLE, TableName.parse(name))
        if self._settings.enable_change_data_feed or table is None or not table.location:
            return None
        if self._workers.here().store.snapshot(table.location).has_change_feed:
            return None
        return "its change data feed is off, and enable_change_data_feed forbids switching it on"


def _key(table: StreamTable) -> tuple[str, str]:
    return table.id, str(table.definition.body["stamp"])


def _read_by(table: StreamTable) -> set[str]:
    return {d.name for d in table.definition.dependencies if d.kind is SourceKind.TABLE}


def _place(table: LakeObject) -> str:
    """Where a refresh reads a table: where it lies, or where it is landed."""
    return str(table.details.get("landing") or table.location or "")


def _fingerprint_of(upstream: StreamTable) -> str:
    """Changes when a stream table's readers must start over: it has other columns, or is stored elsewhere."""
    return fingerprint(upstream.id, upstream.public_stage.path, str(upstream.definition.columns))


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


def _tell_about(name: TableName, compiled: Compiled, mode: RefreshMode) -> None:
    if mode is RefreshMode.AUTO and compiled.reasons:
        tell(f"{name} will be recomputed at each refresh: {'; '.join(compiled.reasons)}", FullRefreshWarning)
    for notice in compiled.notices:
        tell(notice, NoticeWarning)


def _require_query(text: str) -> None:
    """Refuse what is not a query before Spark sees it: Spark would run a DELETE that it is only asked to describe."""
    statement = parse_statement(text)
    if not isinstance(statement, Other) or statement.effect is not Effect.READ:
        raise MillstreamError(
            Code.SYNTAX_ERROR, "a stream table is defined by exactly one SELECT", sql=text, hint="write SELECT or WITH"
        )


def _refuse_locks(query: str) -> None:
    """Before Spark calls them a syntax error."""
    try:
        tree = parse_query(query)
    except MillstreamError:
        return  # Spark may know better, or gives the better message
    refuse_in_every_mode(tree, query)


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
