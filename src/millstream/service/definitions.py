"""Creates and drops stream tables, and prepares new definitions for them (see `replacing`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from millstream.capture import Captures
from millstream.catalog import Catalog
from millstream.catalog.models import Definition, NewStreamTable, SourceKind, StreamTable, new_id
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled, Lake
from millstream.lake.change_feeds import ChangeFeeds
from millstream.lake.compiler import Compiler
from millstream.lake.definition_record import DefinitionRecord
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.lake.stage_storage import StageStorage
from millstream.naming import TableName
from millstream.notices import FullRefreshWarning, NoticeWarning, warn
from millstream.results import RefreshMode
from millstream.service.schedules import checked_schedule
from millstream.settings import Settings


class Definitions:
    """Stream tables as users declare them: from a query to catalog entries and stored tables, and back."""

    def __init__(
        self,
        lake: Lake,
        catalog: Catalog,
        workers: Workers,
        compiler: Compiler,
        recorded: RecordedDefinitions,
        feeds: ChangeFeeds,
        captures: Captures,
        settings: Settings,
    ) -> None:
        self._lake = lake
        self._catalog = catalog
        self._workers = workers
        self._compiler = compiler
        self._recorded = recorded
        self._feeds = feeds
        self._captures = captures
        self._settings = settings
        self._record = DefinitionRecord(lake, catalog, workers)
        self._storage = StageStorage(lake.root, workers)

    def create(self, name: TableName, query: str, schedule: str, mode: RefreshMode, dialect: str | None) -> StreamTable:
        """Record a stream table with empty stored tables; it is filled by its first refresh."""
        parsed = checked_schedule(schedule, self._workers.semantics(), self._settings.min_schedule_seconds)
        if name.database is not None:
            raise MillstreamError(
                Code.NAME_INVALID,
                f"{name} cannot be the name of a stream table",
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
        compiled = self._compiler.compile(query, mode, dialect)
        with self._captures.beginning(compiled.used_columns):
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
        self._recorded.remember(table, compiled)
        self._lake.sync()
        warn_about(name, compiled, mode)
        return table

    # A definition that replaces another

    def is_same(self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str]) -> bool:
        """Whether a query is the one that a stream table has, with its sources as they are now."""
        known = table.definition
        if (compiled.written, compiled.dialect, dict(semantics)) != (
            known.original_query,
            known.dialect,
            dict(known.settings),
        ) or set(compiled.sources) != set(known.body.sources):
            return False
        if not all(self._record.can_record(name) for name in compiled.sources):
            return False  # a table of a database that was detached meanwhile, and is not captured again yet
        new = self._record.definition(compiled, semantics)
        return _compared(new) == _compared(known)

    def refuse_other_columns(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a query with other columns for a stream table that has dependents.

        Raises:
            MillstreamError: INCOMPATIBLE_CHANGE.
        """
        old = [(n.lower(), t) for n, t in table.definition.columns]
        readers = [reader for reader in self._catalog.dependents(table.name) if reader != table.name]
        if readers and [(c.name.lower(), c.type) for c in compiled.columns] != old:
            raise MillstreamError(
                Code.INCOMPATIBLE_CHANGE,
                f"the new query has other columns, and {', '.join(map(str, readers))} read {table.name}",
                hint="keep the names and types of the columns, or drop the dependents first",
            )

    @contextmanager
    def candidate(
        self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str], mode: RefreshMode
    ) -> Iterator[StreamTable]:
        """A stream table as it would be under another definition, with its sources captured and its stages empty.

        The caller loads and records it inside the block; if that fails, everything created for it is removed.

        Raises:
            MillstreamError: what `Captures.beginning` raises, SOURCE_NO_CHANGE_FEED, LAKE_UNWRITABLE.
        """
        with self._captures.beginning(compiled.used_columns):
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
                self._recorded.remember(made, compiled)
                yield made
            except BaseException:
                now = self._catalog.find_by_id(table.id)
                if now is None or now.public_stage.id not in {stage.id for stage in stages}:
                    self._storage.remove(stages)
                raise

    def settle(self, before: StreamTable, after: StreamTable) -> None:
        """Make a definition that has taken effect visible, and remove what the previous one stored."""
        self._lake.sync()
        self._storage.sweep(after)
        self._captures.end_unread(_read_by(before) - _read_by(after))

    def sweep(self, table: StreamTable) -> None:
        """Remove what definitions that never took effect have stored; the caller holds the table's lock."""
        self._storage.sweep(table)

    def switch_on_feeds(self, compiled: Compiled) -> None:
        """Make the sources of a query record their changes."""
        self._feeds.switch_on(compiled)

    def drop(self, name: TableName, *, cascade: bool, lost: str | None = None) -> tuple[StreamTable, ...]:
        """Drop a stream table and delete what it stored; `lost` is a database where capture cannot be ended."""
        dropped = self._catalog.drop_stream_table(name, cascade=cascade)
        self._lake.sync()
        for table in dropped:
            self._storage.remove(table.stages)
        read = {name for table in dropped for name in _read_by(table)}
        self._captures.end_unread({name for name in read if lost is None or TableName.parse(name).database != lost})
        return dropped


def _read_by(table: StreamTable) -> set[str]:
    return {d.name for d in table.definition.dependencies if d.kind is SourceKind.TABLE}


def _compared(definition: Definition) -> tuple[object, ...]:
    """The parts in which two definitions must agree to be the same."""
    dependencies = sorted(
        (d.kind, d.name, d.source_id, *d.columns_used, d.fingerprint) for d in definition.dependencies
    )
    return replace(definition.body, stamp=""), definition.columns, dependencies


def warn_about(name: TableName, compiled: Compiled, mode: RefreshMode) -> None:
    """Warn about what a user should know of a definition."""
    if mode is RefreshMode.AUTO and compiled.reasons:
        warn(f"{name} will be recomputed at each refresh: {'; '.join(compiled.reasons)}", FullRefreshWarning)
    for notice in compiled.notices:
        warn(notice, NoticeWarning)
