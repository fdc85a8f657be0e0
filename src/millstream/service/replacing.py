"""Replaces the definitions of stream tables: a new one is loaded, served and put into effect, or nothing changes.

A new definition gets stages of its own, which no other process knows. They are loaded at one frontier, after the stream
tables that the query reads were refreshed; then one catalog transaction puts the definition and its contents into
effect. The served table changes in a transaction that is open during that. Until then nothing has changed, even after a
crash; files that a crash orphans are removed by the next replacement, or with the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.attached import Serving
from millstream.catalog.models import Load, NewDefinition, SourceKind, StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.compiler import Compiler
from millstream.lake.locks import LockManager
from millstream.lake.recorded_definitions import RecordedDefinitions, fitting
from millstream.naming import TableName
from millstream.notices import NoticeWarning, ServingWarning, warn
from millstream.passes.pass_runner import PassRunner, definition_key
from millstream.passes.table_refresh import TableRefresh
from millstream.planner import Choice
from millstream.planner.choice import full_required
from millstream.reasons import Reason
from millstream.refresh.runner import OutdatedError
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshResult, Status
from millstream.scheduler.dag import Dag
from millstream.service.definitions import Definitions, warn_about
from millstream.service.schedules import checked_schedule
from millstream.serving.declarations import ServeOptions, ServingDefinitions
from millstream.serving.table_server import TableServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log = logging.getLogger(__name__)

TRIES = 10
"""How many times a definition is prepared, if other sessions keep changing the lake."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a user changes about a stream table; None leaves an option as it is.

    Args:
        initialize: whether a new query is loaded; None loads it if the old one was.
    """

    query: str | None = None
    dialect: str | None = None
    mode: RefreshMode | None = None
    schedule: str | None = None
    status: Status | None = None
    serve: ServeOptions | None = None
    initialize: bool | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A definition that is ready to be loaded, for a stream table as it was at a generation of the catalog."""

    table: StreamTable
    compiled: Compiled
    semantics: Mapping[str, str]
    mode: RefreshMode
    upstream: Sequence[TableName]
    generation: int


class Replacements:
    """Changes the definitions of a lake's stream tables."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        locks: LockManager,
        compiler: Compiler,
        recorded: RecordedDefinitions,
        definitions: Definitions,
        servings: ServingDefinitions,
        server: TableServer,
        passes: PassRunner,
        refresher: TableRefresh,
        clock: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._locks = locks
        self._compiler = compiler
        self._recorded = recorded
        self._definitions = definitions
        self._servings = servings
        self._server = server
        self._passes = passes
        self._refresher = refresher
        self._clock = clock

    # Changes that a user requests

    def apply(self, name: TableName, change: Change) -> None:
        """Make all the given changes to a stream table, or none.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, INCOMPATIBLE_CHANGE, CYCLE; what is wrong with the query; why its
                sources cannot be captured, or it cannot be loaded or served.
        """
        for _ in range(TRIES):
            prepared = self._prepared(self._catalog.get(name), change)
            try:
                with self._holding(prepared) as now:
                    if now is not None:
                        if self._apply(now, change):
                            self._warn(now)
                        return
            except OutdatedError as outdated:
                self.follow(outdated, InitiatedBy.INITIAL, None)
        raise kept_changing(name)

    def _apply(self, prepared: _Prepared, change: Change) -> bool:
        """Make the changes; true if the definition is a new one. The caller holds the locks."""
        table, compiled = prepared.table, prepared.compiled
        checked_schedule(change.schedule or table.schedule, prepared.semantics)
        old, new = self._server.serving_of(table), self._servings.wanted(table, change.serve)
        is_same = self._is_same(prepared, change)
        if not is_same:
            self._recorded.refuse_cycle(table, compiled)
            self._definitions.refuse_other_columns(table, compiled)
        if old is not None and new is not None and old.name == new.name:
            self._servings.refuse_other_columns(table, compiled)
        elif change.serve is not None:
            self._servings.rehearse(table, compiled, change.serve)
        if is_same and (table.is_populated or not change.initialize):
            self._set(prepared, change, old, new)
            return False
        is_loaded = table.is_populated if change.initialize is None else change.initialize
        self._replace(prepared, change, old, new, is_loaded=is_loaded)
        return True

    def _prepared(self, table: StreamTable, change: Change) -> _Prepared:
        mode = change.mode or table.refresh_mode
        if change.query is not None:
            dialect = change.dialect or table.definition.dialect
            compiled = self._compiler.compile(change.query, mode, dialect)
            return self._planned(table, compiled, self._workers.semantics(), mode)
        compiled = self._compiler.compile_as_recorded(table, mode)
        if mode is not table.refresh_mode:
            self._recorded.refuse_cycle(table, compiled)  # a member cannot be FULL
        if not _is_stored_alike(table, compiled):
            compiled = self._recorded.recompile(table, mode)
        return self._planned(table, compiled, table.definition.settings, mode)

    def _planned(
        self, table: StreamTable, compiled: Compiled, semantics: Mapping[str, str], mode: RefreshMode
    ) -> _Prepared:
        generation = self._catalog.generation()
        read = [n for n in compiled.sources if self._catalog.find(TableName.parse(n)) is not None]
        order = dag_of(self._catalog).refresh_order(read)
        upstream = tuple(TableName.parse(n) for n in order if n != str(table.name))
        return _Prepared(table, compiled, semantics, mode, upstream, generation)

    @contextmanager
    def _holding(self, prepared: _Prepared) -> Iterator[_Prepared | None]:
        """Hold the locks of a stream table and of those it will read; None if the lake has changed meanwhile."""
        table = prepared.table
        keys = {table.id, definition_key(table.id), *(self._catalog.get(n).id for n in prepared.upstream)}
        with self._locks.acquire(keys, on_wait=self._passes.waiting):
            now = self._catalog.find_by_id(table.id)
            is_current = self._catalog.generation() == prepared.generation and now is not None
            if now is not None and is_current and now.definition.body.stamp == table.definition.body.stamp:
                self._definitions.sweep(now)  # remove what an interrupted replacement stored
                yield replace(prepared, table=now)
            else:
                yield None

    def _is_same(self, prepared: _Prepared, change: Change) -> bool:
        """Whether the query stays the same."""
        table, compiled = prepared.table, prepared.compiled
        if change.query is None:
            return _is_stored_alike(table, compiled)
        return self._definitions.is_same(table, compiled, prepared.semantics)

    def _set(self, prepared: _Prepared, change: Change, old: Serving | None, new: Serving | None) -> None:
        """Change the options that the contents do not depend on, if any of them differs."""
        table = prepared.table
        mode = prepared.mode if prepared.mode is not table.refresh_mode else None
        schedule = change.schedule if change.schedule != table.schedule else None
        if mode is not None:
            self._definitions.switch_on_feeds(prepared.compiled)
        if mode is schedule is change.status is None and old == new:
            return
        if old == new:
            self._catalog.alter_stream_table(table.name, schedule=schedule, refresh_mode=mode, status=change.status)
            return
        assert new is not None
        with self._server.replacing(table, self._workers.here().store, old, new):
            self._catalog.alter_stream_table(
                table.name,
                schedule=schedule,
                refresh_mode=mode,
                status=change.status,
                serving=self._server.moving(old, new),
            )
        self._server.finish_move(table)

    # Changes that the sources require

    def follow(
        self, outdated: OutdatedError, initiated_by: InitiatedBy, mode: RefreshMode | None
    ) -> RefreshResult | None:
        """Give a stream table a definition that fits its sources as they are now; None if they have changed again.

        Args:
            mode: requested for this refresh only.

        Raises:
            MillstreamError: SOURCE_CHANGED if its query no longer fits; FULL_REQUIRED for one that is DIFFERENTIAL
                STRICT, unless FULL was requested; why the load failed. It is recorded as a failed refresh.
        """
        table, started_at = outdated.table, self._clock()
        unserved = None
        try:
            compiled = self._recorded.recompile(table, table.refresh_mode)
            if table.is_populated and (mode or table.refresh_mode) is RefreshMode.DIFFERENTIAL_STRICT:
                raise full_required(str(table.name), outdated.reason)
            prepared = self._planned(table, compiled, table.definition.settings, table.refresh_mode)
            with self._holding(prepared) as now:
                if now is None:
                    return None
                result = self._replace(
                    now, Change(), None, None, initiated_by=initiated_by, mode=mode, reason=outdated.reason
                )
                unserved = self._refresher.serve(table.id, initiated_by, started_at)
        except OutdatedError as deeper:  # of a stream table that it reads
            self.follow(deeper, initiated_by, None)
            return None
        except MillstreamError as error:
            self._refresher.record_failure(table, error, initiated_by, started_at)
            raise
        if unserved is not None:
            raise unserved
        return result

    # Both

    def _replace(
        self,
        prepared: _Prepared,
        change: Change,
        old: Serving | None,
        new: Serving | None,
        *,
        is_loaded: bool = True,
        initiated_by: InitiatedBy = InitiatedBy.INITIAL,
        mode: RefreshMode | None = None,
        reason: str | None = None,
    ) -> RefreshResult | None:
        """Load a definition, and put it into effect; the caller holds the locks."""
        table, compiled = prepared.table, prepared.compiled
        started = time.perf_counter()
        load, result, is_done, serving_failed = None, None, False, None
        cycle = frozenset(self._catalog.get(TableName.parse(n)).id for n in self._recorded.cycle_with(table, compiled))
        with ExitStack() as stack:
            with nullcontext() if reason is None else fitting(table):
                candidate = stack.enter_context(
                    self._definitions.candidate(table, compiled, prepared.semantics, prepared.mode)
                )
            if is_loaded:
                candidate, load, result = self._passes.load(
                    prepared.upstream, candidate, compiled, initiated_by, _choice(table, reason), mode
                )
            try:
                with self._server.replacing(candidate, self._workers.here().store, old, new):
                    recorded = self._server.moving(old, new) if new is not None else None
                    after = self._catalog.replace_stream_table(
                        _new(candidate, change, load, recorded, cycle, is_altered=reason is None)
                    )
                    is_done = True
            except MillstreamError as error:
                if not is_done:
                    raise
                serving_failed = error  # during the commit
        took = (time.perf_counter() - started) * 1000
        _log.info("%s: has a new definition after %.0f ms, version %d", table.name, took, after.definition_version)
        self._settle(table, after, initiated_by, serving_failed)
        return result

    def _settle(
        self, before: StreamTable, after: StreamTable, initiated_by: InitiatedBy, error: MillstreamError | None
    ) -> None:
        """Clean up after a definition that has taken effect; a later refresh does what fails here."""
        error = (
            self._refresher.serve(after.id, initiated_by, self._clock()) if error is not None else self._moved(after)
        )
        if error is not None:
            warn(f"{after.name} could not be served; its next refresh retries it: {error.message}", ServingWarning)
        try:
            self._definitions.settle(before, after)
        except MillstreamError as left:
            warn(f"the old definition of {after.name} was not removed completely: {left.message}", NoticeWarning)

    def _moved(self, table: StreamTable) -> MillstreamError | None:
        try:
            self._server.finish_move(table)
        except MillstreamError as error:
            return error
        return None

    def _warn(self, prepared: _Prepared) -> None:
        warn_about(prepared.table.name, prepared.compiled, prepared.mode)
        for reader in dag_of(self._catalog).downstream([str(prepared.table.name)]):
            found = self._catalog.find(TableName.parse(reader))
            if found is not None and found.is_populated and found.refresh_mode is RefreshMode.DIFFERENTIAL_STRICT:
                warn(
                    f"{reader} reads {prepared.table.name} and is DIFFERENTIAL STRICT: "
                    f"it is not refreshed again until you run REFRESH STREAM TABLE {reader} FULL",
                    NoticeWarning,
                )


def dag_of(catalog: Catalog) -> Dag:
    """Which tables and views each stream table reads."""
    return Dag.build(
        {
            str(table.name): [d.name for d in table.definition.dependencies if d.kind is not SourceKind.FUNCTION]
            for table in catalog.list()
        }
    )


def _choice(table: StreamTable, reason: str | None) -> Choice:
    if not table.is_populated:
        return Choice(Action.FULL, f"{Reason.INITIAL}: the first load")
    return Choice(Action.REINITIALIZE, reason or f"{Reason.QUERY_ALTERED}: the definition was replaced")


def _new(
    candidate: StreamTable,
    change: Change,
    load: Load | None,
    serving: Serving | None,
    cycle: frozenset[str],
    *,
    is_altered: bool,
) -> NewDefinition:
    return NewDefinition(
        table_id=candidate.id,
        name=candidate.name,
        definition=candidate.definition,
        stages=candidate.stages,
        load=load,
        cycle=cycle,
        is_altered=is_altered,
        refresh_mode=candidate.refresh_mode,
        schedule=change.schedule,
        status=change.status,
        serving=serving,
    )


def _is_stored_alike(table: StreamTable, compiled: Compiled) -> bool:
    return compiled.fingerprint == table.definition.body.fingerprint


def kept_changing(name: TableName) -> MillstreamError:
    """The error for giving up because other sessions keep changing the sources."""
    return MillstreamError(
        Code.SOURCE_CHANGED,
        f"what {name} reads kept changing; gave up after {TRIES} attempts",
        hint="try again when these changes have ended",
    )
