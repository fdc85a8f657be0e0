"""Compiling, creating and dropping stream tables, and preparing other definitions for them (see `replacing`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from millstream.catalog import Catalog
from millstream.catalog.models import Definition, LakeObject, NewStreamTable, SourceKind, StreamTable, new_id
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled, Lake, compile_query
from millstream.lake.exact import Exactly
from millstream.naming import TableName
from millstream.reasons import Reason
from millstream.results import RefreshMode
from millstream.service.captured import CapturedTables
from millstream.service.change_feeds import ChangeFeeds
from millstream.service.definition_record import DefinitionRecord
from millstream.service.dialects import (
    Dialect,
    as_written,
    default_dialect,
    naming_the_dialect,
    parse_dialect,
    pointing_into,
    require_ansi,
)
from millstream.service.notices import FullRefreshWarning, NoticeWarning, tell
from millstream.service.recorded import AsItIs, AsRecorded
from millstream.service.schedules import checked_schedule
from millstream.service.source_changes import change_of, is_another, misfit
from millstream.service.stage_storage import StageStorage
from millstream.settings import Settings
from millstream.sql.parse import parse_query
from millstream.sql.postgres import translate
from millstream.sql.recursive_text import with_union_all
from millstream.sql.refused import refuse_in_every_mode
from millstream.sql.statements import Effect, Other, parse_statement

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
        self._feeds = ChangeFeeds(catalog, workers, settings)
        self._record = DefinitionRecord(lake, catalog, workers)
        self._storage = StageStorage(lake.root, workers)
        self._cache: dict[tuple[str, str], Compiled] = {}
        self._current_at: dict[tuple[str, str], int] = {}

    # Compiling

    def compile(self, query: str, mode: RefreshMode, dialect: str | None = None) -> Compiled:
        """Compile a query against the lake as it is now, under the settings of the user's session."""
        if parse_dialect(dialect or self.default_dialect(query)) is not Dialect.SPARK:
            with nullcontext() if dialect else naming_the_dialect():
                return self._permitted(self._compile_translated(query, mode, AsItIs(self._lake, self._feeds.obstacle)))
        _require_query(query)
        self._lake.sync()
        worker = self._workers.here()
        worker.use(self._workers.semantics())
        _refuse_locks(query)
        analysed = with_union_all(self._lake.analysable(query))
        with pointing_into(query, analysed):
            worker.analyzer.describe_text(analysed)  # errors that point into the user's own text
        sources = AsItIs(self._lake, self._feeds.obstacle)
        try:
            compiled = compile_query(query, mode, sources, worker.analyzer, self._functions(query, sources))
            return self._permitted(compiled)
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

    def _permitted(self, compiled: Compiled) -> Compiled:
        """A compiled query, if the roles of attached databases may name the views that it names.

        Whether their texts may read what these name was asked when they were looked up.

        Raises:
            MillstreamError: PRIVILEGE_MISSING.
        """
        for name in sorted(compiled.named_views & compiled.attached_views.keys()):
            rights = self._lake.attached.view(TableName.parse(name).parts, exact=True)
            if rights is not None and (error := rights.naming_error()) is not None:
                raise error
        return compiled

    def _refuse_replacements(self, table: StreamTable, compiled: Compiled) -> None:
        """See that nobody has replaced a view by one that lends the rights of the reading role to its owner.

        Raises:
            MillstreamError: PRIVILEGE_MISSING; LOCK_TIMEOUT for a view that is being replaced again.
        """
        known = {d.name: d.fingerprint for d in table.definition.dependencies if d.kind is SourceKind.VIEW}
        for name, view in compiled.attached_views.items():
            if known.get(name) == view.mark:
                continue
            rights = self._lake.attached.view(TableName.parse(name).parts, exact=True)
            if rights is None or rights.mark != view.mark:
                raise MillstreamError(Code.LOCK_TIMEOUT, f"{name} is being replaced", hint="refresh again")
            if (error := rights.replacing_error()) is not None:
                raise error

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
        translation = translate(query, Exactly(sources), worker.analyzer)
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
            try:
                self._cache[key] = self.as_recorded(table, table.refresh_mode)
            except MillstreamError as error:
                if (about := self._about_functions(table, error)) is None:
                    raise
                raise about from error
        return self._cache[key]

    def as_recorded(self, table: StreamTable, mode: RefreshMode) -> Compiled:
        """A table's query compiled for a mode, over what its sources and views were when it was made."""
        return self._compile_again(table, mode, AsRecorded(table.definition.body), table.definition.body["functions"])

    def _about_functions(self, table: StreamTable, error: MillstreamError) -> MillstreamError | None:
        """Of all a definition has recorded, only its SQL functions are looked up in the lake as it is."""
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.FUNCTION and (change := change_of(self._catalog, dependency)):
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
                if change := change_of(self._catalog, dependency):
                    is_altered = (
                        dependency.kind is SourceKind.STREAM_TABLE and table.reinit_reason == Reason.QUERY_ALTERED
                    )
                    why = Reason.QUERY_ALTERED if is_altered else Reason.SOURCE_CHANGED
                    return f"{why}: {dependency.name} {change}"
            self._current_at[key] = generation
        if table.definition.body["fingerprint"] != compiled.fingerprint:
            return "LAYOUT: the stored table was made by another version of millstream"
        store, is_empty = self._workers.here().store, table.public_stage.version is None
        for source in compiled.sources.values():
            version = versions.get(source.id)
            if version is None:
                continue
            if is_another(store, source, table, paths[source.id], version):
                return f"SOURCE_CHANGED: {source.id} was replaced by another table"
            is_read = version == table.frontier.get(source.id) and not is_empty
            if not is_read and (change := misfit(store, source, compiled, paths[source.id], version)):
                return f"SOURCE_CHANGED: {source.id} {change}"
        return None

    def recompile(self, table: StreamTable, mode: RefreshMode) -> Compiled:
        """Compile a table's query over what it reads now, under the settings it was defined with.

        Raises:
            MillstreamError: SOURCE_CHANGED if the query no longer fits.
        """
        with fitting(table):
            live = AsItIs(self._lake, self._feeds.obstacle, table.definition.body["sources"])
            if table.definition.dialect != Dialect.SPARK:  # the types it was translated for may have changed
                compiled = self._compile_translated(
                    table.definition.original_query, mode, live, table.definition.settings
                )
            else:
                functions = self._functions(table.definition.original_query, live)
                compiled = self._compile_again(table, mode, live, functions)
            self._refuse_replacements(table, self._permitted(compiled))
            if [c.name for c in compiled.columns] != [n for n, _ in table.definition.columns]:
                raise MillstreamError(Code.SOURCE_CHANGED, "the query now has other output columns")
            self.refuse_cycle(table, compiled)
            return compiled

    def watch(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> None:
        """Have the sources record their changes again, should somebody have switched that off."""
        self._feeds.keep_on(table, compiled, paths, versions)

    def land(self, item: LakeObject) -> None:
        """Copy a table that records no changes into the lake."""
        self._lake.sync()
        self._lake.land(item)

    # Creating, altering, dropping

    def create(self, name: TableName, query: str, schedule: str, mode: RefreshMode, dialect: str | None) -> StreamTable:
        """Record a stream table with empty stored tables; it is filled by its first refresh."""
        parsed = checked_schedule(schedule, self._workers.semantics(), self._settings.min_schedule_seconds)
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
            self._feeds.switch_on(compiled)
            stages = self._storage.create(name, compiled)
            try:
                table = self._catalog.create_stream_table(
                    NewStreamTable(
                        id=new_id(),
                        name=name,
                        schedule=parsed.text,
                        refresh_mode=mode,
                        definition=self._record.definition(compiled, self._workers.semantics()),
                        stages=stages,
                    )
                )
            except BaseException:
                self._storage.remove(stages)
                raise
        self._cache[_key(table)] = compiled
        self._lake.sync()
        tell_about(name, compiled, mode)
        return table

    # A definition that takes the place of another

    def is_same(self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str]) -> bool:
        """Whether a query is what a stream table has, over what its sources are now."""
        known = table.definition
        if (compiled.written, compiled.dialect, dict(semantics)) != (
            known.original_query,
            known.dialect,
            dict(known.settings),
        ) or set(compiled.sources) != set(known.body["sources"]):
            return False
        if not all(self._record.can_record(name) for name in compiled.sources):
            return False  # a table of a database that was gone, and is not captured again yet
        new = self._record.definition(compiled, semantics)
        return _compared(new) == _compared(known)

    def semantics(self) -> Mapping[str, str]:
        """The settings of the user's session that are part of a query's meaning."""
        return self._workers.semantics()

    def refuse_other_columns(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a query with other columns for a stream table that others read.

        Raises:
            MillstreamError: INCOMPATIBLE_CHANGE.
        """
        old = [(n.lower(), t) for n, t in table.definition.columns]
        readers = self._catalog.dependents(table.name)
        if readers and [(c.name.lower(), c.type) for c in compiled.columns] != old:
            raise MillstreamError(
                Code.INCOMPATIBLE_CHANGE,
                f"the new query has other columns, and {', '.join(map(str, readers))} read {table.name}",
                hint="keep the names and types of the columns, or drop the readers first",
            )

    @contextmanager
    def candidate(
        self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str], mode: RefreshMode
    ) -> Iterator[StreamTable]:
        """A stream table as it would be under another definition, its sources captured and its stages empty.

        To be loaded and recorded inside the block; if that fails, what was made for it is removed.

        Raises:
            MillstreamError: what `CapturedTables.beginning` raises, SOURCE_NO_CHANGE_FEED, LAKE_UNWRITABLE.
        """
        with self._captured.beginning(compiled.used_columns):
            self._feeds.switch_on(compiled)
            stages = self._storage.create(table.name, compiled)
            try:
                made = replace(
                    table,
                    definition=self._record.definition(compiled, semantics),
                    refresh_mode=mode,
                    stages=stages,
                    is_populated=False,
                    data_timestamp=None,
                    frontier={},
                    base_frontier={},
                    needs_reinit=False,
                    reinit_reason=None,
                    open_refresh_id=None,
                )
                self._cache[_key(made)] = compiled
                yield made
            except BaseException:
                now = self._catalog.find_by_id(table.id)
                if now is None or now.public_stage.id not in {stage.id for stage in stages}:
                    self._storage.remove(stages)
                raise

    def settle(self, before: StreamTable, after: StreamTable) -> None:
        """Show a definition that has taken effect, and remove what is left of the one before."""
        self._lake.sync()
        self._storage.sweep(after)
        self._captured.end_unread(_read_by(before) - _read_by(after))

    def sweep(self, table: StreamTable) -> None:
        """Remove what definitions of a stream table that never took effect have left; the caller holds its lock."""
        self._storage.sweep(table)

    def switch_on_feeds(self, compiled: Compiled) -> None:
        """Have the sources of a query record their changes."""
        self._feeds.switch_on(compiled)

    def drop(self, name: TableName, *, cascade: bool, lost: str | None = None) -> tuple[StreamTable, ...]:
        """Forget a stream table and delete what it stored; `lost` is a database where nothing can be ended."""
        dropped = self._catalog.drop_stream_table(name, cascade=cascade)
        self._lake.sync()
        for table in dropped:
            self._storage.remove(table.stages)
        read = {name for table in dropped for name in _read_by(table)}
        self._captured.end_unread({name for name in read if lost is None or TableName.parse(name).database != lost})
        return dropped

    def refuse_cycle(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a query that reads the stream table itself; the catalog checks again when it is recorded."""
        pending, seen = list(compiled.sources), set[str]()
        while pending:
            name = pending.pop()
            if name == str(table.name):
                raise MillstreamError(Code.CYCLE, f"{table.name} would read itself", hint="read its sources instead")
            if name not in seen:
                seen.add(name)
                upstream = self._catalog.find(TableName.parse(name))
                pending += [d.name for d in upstream.definition.dependencies] if upstream else []


def _key(table: StreamTable) -> tuple[str, str]:
    return table.id, str(table.definition.body["stamp"])


def _read_by(table: StreamTable) -> set[str]:
    return {d.name for d in table.definition.dependencies if d.kind is SourceKind.TABLE}


def _compared(definition: Definition) -> tuple[object, ...]:
    """What two definitions have to agree in to be the same, as the catalog would give it back."""
    body = {k: v for k, v in definition.body.items() if k != "stamp"}
    dependencies = sorted(
        (d.kind, d.name, d.source_id, *d.columns_used, d.fingerprint) for d in definition.dependencies
    )
    return json.loads(json.dumps(body)), definition.columns, dependencies


@contextmanager
def fitting(table: StreamTable) -> Iterator[None]:
    """What is wrong with a query that was in order once is due to what it reads.

    Raises:
        MillstreamError: SOURCE_CHANGED.
    """
    try:
        yield
    except MillstreamError as cause:
        if cause.code in _PASSING:
            raise
        raise MillstreamError(
            Code.SOURCE_CHANGED,
            f"what {table.name} reads has changed and its query no longer fits: {cause.message}",
            hint=f"ALTER STREAM TABLE {table.name} AS <a query that fits>, or undo the change",
        ) from cause


def tell_about(name: TableName, compiled: Compiled, mode: RefreshMode) -> None:
    """Warn of what a user should know about a definition."""
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
