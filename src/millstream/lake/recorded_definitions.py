"""Compiles recorded definitions, and checks whether they still fit their sources.

A refresh checks its definition here; if a source has changed, the stream table gets a new definition
(`service.replacing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millstream.catalog import Catalog
from millstream.catalog.models import LakeObject, SourceKind, StreamTable
from millstream.catalog.stores.dependencies import CYCLE_HINT
from millstream.cycles import Cycle, cycle_of
from millstream.diff.circular import obstacle
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.change_feeds import ChangeFeeds
from millstream.lake.compiled import Compiled
from millstream.lake.compiler import Compiler
from millstream.lake.objects import Lake
from millstream.lake.source_changes import change_of, is_another, misfit
from millstream.naming import TableName
from millstream.reasons import Reason
from millstream.results import RefreshMode

# temporary errors, which do not mean that a query no longer fits
_PASSING = {
    Code.DATABASE_UNREACHABLE,
    Code.LOCK_TIMEOUT,
    Code.SNAPSHOT_LOST,
    Code.PRIVILEGE_MISSING,
    Code.LAKE_UNWRITABLE,
}


class RecordedDefinitions:
    """The definitions of a lake's stream tables."""

    def __init__(
        self,
        lake: Lake,
        catalog: Catalog,
        workers: Workers,
        compiler: Compiler,
        feeds: ChangeFeeds,
        *,
        allow_circular: bool = False,
    ) -> None:
        self._allow_circular = allow_circular
        self._lake = lake
        self._catalog = catalog
        self._workers = workers
        self._compiler = compiler
        self._feeds = feeds
        self._cache: dict[tuple[str, str], Compiled] = {}
        self._current_at: dict[tuple[str, str], int] = {}

    def compiled(self, table: StreamTable) -> Compiled:
        """The compiled definition of a table, over its sources and views as they were when it was defined."""
        key = _key(table)
        if key not in self._cache:
            try:
                self._cache[key] = self._compiler.compile_as_recorded(table, table.refresh_mode)
            except MillstreamError as error:
                if (about := self._about_functions(table, error)) is None:
                    raise
                raise about from error
        return self._cache[key]

    def remember(self, table: StreamTable, compiled: Compiled) -> None:
        """Cache a compiled definition."""
        self._cache[_key(table)] = compiled

    def _about_functions(self, table: StreamTable, error: MillstreamError) -> MillstreamError | None:
        """The error about a changed SQL function: only functions are looked up in the current lake."""
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.FUNCTION and (change := change_of(self._catalog, dependency)):
                return MillstreamError(
                    Code.SOURCE_CHANGED,
                    f"{table.name} calls the SQL function {dependency.name}, which {change}: {error.message}",
                    hint=f"create {dependency.name} again, or ALTER STREAM TABLE {table.name} AS <a query that fits>",
                )
        return None

    def checked(self, table: StreamTable, generation: int) -> Compiled | None:
        """The compiled definition, if a refresh has found it up to date in this generation of the catalog."""
        key = _key(table)
        return self._cache.get(key) if self._current_at.get(key) == generation else None

    def outdated(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> str | None:
        """Which source, view or function has changed since a table's definition was compiled; None if none has."""
        generation, key = self._catalog.generation(), _key(table)
        if self._current_at.get(key) != generation:
            # a cycle is loaded as a whole after the definition of a member was replaced, with the others as they are
            cycle = self.cycle_with(table, compiled)
            for dependency in table.definition.dependencies:
                if dependency.name not in cycle and (change := change_of(self._catalog, dependency)):
                    is_altered = (
                        dependency.kind is SourceKind.STREAM_TABLE and table.reinit_reason == Reason.QUERY_ALTERED
                    )
                    why = Reason.QUERY_ALTERED if is_altered else Reason.SOURCE_CHANGED
                    return f"{why}: {dependency.name} {change}"
            self._current_at[key] = generation
        if table.definition.body.fingerprint != compiled.fingerprint:
            return f"{Reason.LAYOUT}: the stored table was made by another version of millstream"
        store, is_empty = self._workers.here().store, table.public_stage.version is None
        for source in compiled.sources.values():
            version = versions.get(source.id)
            if version is None:
                continue
            if is_another(store, source, table, paths[source.id], version):
                return f"{Reason.SOURCE_CHANGED}: {source.id} was replaced by another table"
            is_read = version == table.frontier.get(source.id) and not is_empty
            if not is_read and (change := misfit(store, source, compiled, paths[source.id], version)):
                return f"{Reason.SOURCE_CHANGED}: {source.id} {change}"
        return None

    def recompile(self, table: StreamTable, mode: RefreshMode) -> Compiled:
        """Compile a table's query over its current sources, with the settings it was defined with.

        Raises:
            MillstreamError: SOURCE_CHANGED if the query no longer fits.
        """
        with fitting(table):
            compiled = self._compiler.compile_now(table, mode)
            self._refuse_replacements(table, compiled)
            if [c.name for c in compiled.columns] != [n for n, _ in table.definition.columns]:
                raise MillstreamError(Code.SOURCE_CHANGED, "the query now has other output columns")
            self.refuse_cycle(table, compiled)
            return compiled

    def _refuse_replacements(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a replaced view if its owner could use it to act with the rights of the reading role.

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

    def cycle_with(self, table: StreamTable, compiled: Compiled) -> Cycle:
        """The stream tables that would read each other if a table had this query; empty if it would not read itself."""
        reads: dict[str, list[str]] = {str(table.name): list(compiled.sources)}
        pending = list(compiled.sources)
        while pending:
            name = pending.pop()
            if name not in reads:
                upstream = self._catalog.find(TableName.parse(name))
                read = upstream.definition.dependencies if upstream is not None else ()
                reads[name] = [d.name for d in read if d.kind is SourceKind.STREAM_TABLE]
                pending += reads[name]
        return cycle_of(str(table.name), reads)

    def refuse_cycle(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a query that closes a cycle, unless circular stream tables are allowed and all members can be in one.

        The catalog checks again when it records the definition.

        Raises:
            MillstreamError: CYCLE; NOT_MONOTONE.
        """
        cycle = self.cycle_with(table, compiled)
        if not cycle:
            return
        if not self._allow_circular and not cycle <= self.cycle_with(table, self.compiled(table)):
            around = "" if len(cycle) == 1 else f", through {', '.join(sorted(cycle - {str(table.name)}))}"
            raise MillstreamError(Code.CYCLE, f"{table.name} would read itself{around}", hint=CYCLE_HINT)
        queries = {
            name: compiled if name == str(table.name) else self.compiled(self._catalog.get(TableName.parse(name)))
            for name in sorted(cycle)
        }
        columns = {name: query.columns for name, query in queries.items()}
        for name, query in queries.items():
            if query.relation is None:
                why = f"it cannot be maintained by deltas ({'; '.join(query.reasons)})"
            elif (found := obstacle(query.relation, columns)) is not None:
                why = found
            else:
                continue
            raise MillstreamError(
                Code.NOT_MONOTONE,
                f"{name} cannot be part of the cycle of {', '.join(sorted(cycle))}: {why}",
                hint="members use only inner joins, EXISTS, IN, WHERE and UNION, and return each row once, by DISTINCT "
                "or UNION; move anything else to a stream table that reads the cycle, or that the cycle reads",
            )

    def watch(
        self, table: StreamTable, compiled: Compiled, paths: Mapping[str, str], versions: Mapping[str, int]
    ) -> None:
        """Enable the change data feed of sources again if it was disabled."""
        self._feeds.keep_on(table, compiled, paths, versions)

    def land(self, item: LakeObject) -> None:
        """Copy a table that records no changes into the lake."""
        self._lake.sync()
        self._lake.land(item)


def _key(table: StreamTable) -> tuple[str, str]:
    return table.id, table.definition.body.stamp


@contextmanager
def fitting(table: StreamTable) -> Iterator[None]:
    """Report errors of a query that was valid before as a change of its sources.

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
            f"a source of {table.name} has changed and its query no longer fits: {cause.message}",
            hint=f"ALTER STREAM TABLE {table.name} AS <a query that fits>, or undo the change",
        ) from cause
