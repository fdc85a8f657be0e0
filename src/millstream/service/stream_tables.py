"""Creates, replaces, alters and drops stream tables, and starts and stops serving them."""

from __future__ import annotations

from collections.abc import Callable

from millstream.catalog import Catalog
from millstream.errors import MillstreamError
from millstream.lake.locks import Locks
from millstream.naming import TableName
from millstream.notices import NoticeWarning, warn
from millstream.results import InitiatedBy, RefreshMode
from millstream.scheduler.schedule import CALCULATED, Schedule
from millstream.service.argument_values import parse_mode, parse_status
from millstream.service.refreshing import Refreshing
from millstream.service.replacing import Change, dag_of
from millstream.service.runtime import Runtime
from millstream.service.schedules import checked_schedule
from millstream.serving.declarations import ServeOptions
from millstream.settings import Settings


class StreamTables:
    """The definitions of a lake, and where they are served, as users change them.

    Args:
        runtime: returns the part of the lake that needs Spark, and starts it if necessary.
    """

    def __init__(
        self,
        catalog: Catalog,
        locks: Locks,
        settings: Callable[[], Settings],
        runtime: Callable[[], Runtime],
        refreshing: Refreshing,
    ) -> None:
        self._catalog = catalog
        self._locks = locks
        self._settings = settings
        self._runtime = runtime
        self._refreshing = refreshing

    def create(
        self,
        name: TableName,
        query: str,
        schedule: str | None,
        mode: RefreshMode,
        dialect: str | None,
        serve: ServeOptions | None,
        *,
        initialize: bool,
    ) -> None:
        """Record a definition, and load and serve it; if that fails, nothing remains of it."""
        runtime = self._runtime()
        if serve is not None:
            runtime.servings.check(serve)
        made = runtime.definitions.create(name, query, CALCULATED if schedule is None else schedule, mode, dialect)
        try:
            if serve is not None:
                runtime.servings.declare(made, serve)
            if initialize:
                self._refreshing.refresh(name, InitiatedBy.INITIAL)
        except BaseException:
            runtime.servings.undo(made)
            runtime.definitions.drop(name, cascade=False)
            raise

    def replace(
        self,
        name: TableName,
        query: str,
        schedule: str | None,
        refresh_mode: str | None,
        dialect: str | None,
        serve: ServeOptions | None,
        *,
        initialize: bool,
    ) -> None:
        """Replace the definition under a name."""
        runtime = self._runtime()
        runtime.replacements.apply(
            name,
            Change(
                query=query,
                dialect=dialect or runtime.compiler.default_dialect(query),
                mode=parse_mode(refresh_mode) if refresh_mode is not None else None,
                schedule=self._checked(schedule) if schedule is not None else None,
                serve=serve,
                initialize=initialize,
            ),
        )
        self._refresh_cycle(name)

    def alter(
        self,
        name: TableName,
        query: str | None,
        schedule: str | None,
        refresh_mode: str | None,
        status: str | None,
        dialect: str | None,
    ) -> None:
        """Change the given options; only a new query or mode needs Spark."""
        change = Change(
            query=query,
            dialect=dialect,
            mode=parse_mode(refresh_mode) if refresh_mode is not None else None,
            schedule=self._checked(schedule) if schedule is not None else None,
            status=parse_status(status) if status is not None else None,
        )
        if query is not None or change.mode not in (None, self._catalog.get(name).refresh_mode):
            self._runtime().replacements.apply(name, change)
            self._refresh_cycle(name)
            return
        if change.schedule is not None:
            checked_schedule(change.schedule, self._catalog.get(name).definition.settings)
        self._catalog.alter_stream_table(name, schedule=change.schedule, status=change.status)

    def _refresh_cycle(self, name: TableName) -> None:
        """Bring the other members of a cycle to a member's new definition; what fails here, a later refresh does."""
        cycle = dag_of(self._catalog).peers.get(str(name), frozenset())
        tables = [self._catalog.get(TableName.parse(member)) for member in sorted(cycle)]
        if not any(table.needs_reinit for table in tables) or not self._catalog.get(name).is_populated:
            return
        try:
            self._refreshing.refresh(name, InitiatedBy.INITIAL)
        except MillstreamError as error:
            others = ", ".join(sorted(cycle - {str(name)}))
            warn(f"{others} could not be refreshed; the next refresh retries it: {error.message}", NoticeWarning)

    def _checked(self, schedule: str) -> str:
        """A schedule's text; whether it fits the table's time zone is checked when it is set."""
        return Schedule.parse(schedule, min_seconds=self._settings().min_schedule_seconds).text

    def drop(self, name: TableName, *, cascade: bool, lost: str | None = None) -> None:
        """Drop a stream table; `lost` is a database to which no connection is made any more."""
        self._catalog.get(name)
        readers = dag_of(self._catalog).downstream([str(name)]) if cascade else ()
        ids = [t.id for n in (str(name), *readers) if (t := self._catalog.find(TableName.parse(n))) is not None]
        with self._locks.acquire(ids):  # not while one of them is being refreshed
            runtime = self._runtime()
            is_refused = not cascade and any(reader != name for reader in self._catalog.dependents(name))
            for table_id in () if is_refused else reversed(ids):
                if (table := self._catalog.find_by_id(table_id)) is not None:
                    runtime.servings.stop(table, cascade=cascade, lost=lost)
                    runtime.definitions.sweep(table)
            runtime.definitions.drop(name, cascade=cascade, lost=lost)

    def serve(self, name: TableName, options: ServeOptions) -> None:
        """Serve a stream table from now on; one that has no contents yet is served by its first refresh."""
        table = self._catalog.get(name)
        with self._locks.acquire([table.id]):
            table, runtime = self._catalog.get(table.name), self._runtime()
            is_new = runtime.servings.declare(table, options) is not None
            if not is_new or not table.is_populated or table.public_stage.version is None:
                return
            try:
                runtime.server.serve(table, runtime.workers.here().store)
            except BaseException:
                runtime.servings.undo(table)
                raise

    def stop_serving(self, name: TableName, *, cascade: bool, keep_table: bool) -> None:
        """Drop the table a stream table is served as, or leave it to its users."""
        table = self._catalog.get(name)
        with self._locks.acquire([table.id]):
            self._runtime().servings.stop(table, cascade=cascade, keep_table=keep_table)
