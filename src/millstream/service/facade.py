"""`Millstream`: the public calls, which delegate to the parts that do the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from millstream import __version__
from millstream.alerts.dispatch import Dispatcher, sinks_of
from millstream.alerts.sink import AlertSink
from millstream.catalog import Catalog
from millstream.catalog.facade import utc_now
from millstream.engine.session import new_worker_session
from millstream.errors import Code, MillstreamError
from millstream.events import Event, parse_names
from millstream.lake.file_system import refuse_network
from millstream.lake.locks import locks_for
from millstream.monitoring.cdc_health import captures_of, slots_of
from millstream.naming import TableName
from millstream.passes.running_refreshes import request_cancel
from millstream.postgres.pool import ConnectionPool
from millstream.results import (
    CdcHealth,
    DaemonStatus,
    Explanation,
    InitiatedBy,
    MaintenanceResult,
    RefreshMode,
    RefreshOutcome,
    RefreshRecord,
    RefreshResult,
    RefreshStats,
    SlotHealth,
    SourceStatus,
    StreamTableStatus,
    VerifyResult,
    WaitResult,
)
from millstream.scheduler.dag import Dag
from millstream.service.argument_values import parse_mode
from millstream.service.attached_reads import table_frame
from millstream.service.attaching import Attaching
from millstream.service.daemon.call_server import CallServer
from millstream.service.daemon.leader import leading
from millstream.service.daemon.loop import Activity, Daemon
from millstream.service.daemon.source_watch import SourceWatch
from millstream.service.due_times import next_due, stale_after
from millstream.service.explain import explanation
from millstream.service.held_tables import waits_of, with_waits
from millstream.service.refreshing import Refreshing
from millstream.service.reloading import Reloaded, reloaded
from millstream.service.replacing import dag_of
from millstream.service.runtime import Runtime, RuntimeStarter
from millstream.service.statements import Statements
from millstream.service.stream_tables import StreamTables
from millstream.service.verifying import Verifying
from millstream.service.wait_points import After
from millstream.service.waiting import Waiting
from millstream.serving.declarations import ServeOptions
from millstream.settings import Settings

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession


class Millstream:
    """A lake and its stream tables. Close it, or use it in a `with` block."""

    def __init__(
        self,
        root: Path,
        read_settings: Callable[[], Settings],
        spark: SparkSession | None,
        progress: Callable[[str], None],
        config: Path | None = None,
    ) -> None:
        settings = read_settings()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise MillstreamError(
                Code.LAKE_UNWRITABLE,
                f"{root} cannot be created: {e.strerror}",
                hint="choose a directory you may write to",
            ) from e
        self._root, self._config = root, config
        self._settings, self._read_settings = settings, read_settings
        self._clock: Callable[[], datetime] = utc_now
        self._catalog = catalog = Catalog.open(settings.catalog_url or root, root=root)
        self._locks = locks = locks_for(catalog, root)
        self._connections = pool = ConnectionPool()
        self._starter = starter = RuntimeStarter(root, settings, catalog, locks, pool, lambda: self._clock(), progress)
        self._attaching = Attaching(catalog, locks, pool, settings, root, lambda: self._clock())
        self._refreshing = Refreshing(catalog, starter.get, lambda: self._clock(), progress)
        self._stream_tables = StreamTables(catalog, locks, lambda: self._settings, starter.get, self._refreshing)
        self._verifying = Verifying(catalog, settings, starter.get, self._refreshing, root / "verifying")
        self._waiting = Waiting(catalog, locks, pool, starter.get, self._refreshing, lambda: self._clock())
        if spark is not None:
            try:
                starter.start(spark)
            except BaseException:
                self.close()
                raise

    @property
    def spark(self) -> SparkSession:
        """The Spark session; the first call that needs it starts it."""
        return self._runtime.spark

    @property
    def _runtime(self) -> Runtime:
        return self._starter.get()

    def close(self) -> None:
        """Release the session and the catalog."""
        with self._starter.closing():
            self._locks.close()
            self._catalog.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Data

    def sql(self, text: str) -> DataFrame:
        """Run one statement: millstream's own, or any of Spark's.

        Raises:
            MillstreamError: what is wrong with it, with the position.
        """
        return self._statements(self.spark).run(text)

    def _statements(self, spark: SparkSession) -> Statements:
        return Statements(self, self._runtime.lake, self._catalog, self._settings, spark)

    def table(self, name: str) -> DataFrame:
        """A stream table, table or view as a DataFrame; also `shop.public.orders` of an attached database.

        Raises:
            MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS.
        """
        return table_frame(self._runtime.lake, self.spark, name, self._settings.trusted_roles)

    # Definitions

    def create_stream_table(
        self,
        name: str,
        query: str,
        schedule: str | None = "1m",
        refresh_mode: str = "AUTO",
        initialize: bool = True,
        dialect: str | None = None,
        *,
        serve_to: str | None = None,
        user_triggers: str | None = None,
        owner: str | None = None,
        grants: Sequence[str] = (),
    ) -> None:
        """Declare a query whose result is kept up to date, and load it unless `initialize` is false.

        Args:
            schedule: how stale it may become, or when it is refreshed; None is CALCULATED.
            dialect: `spark` or `postgres`; by default `postgres` if every table it reads, through stream tables and
                views, is in a PostgreSQL database.
            serve_to: a table of an attached database, `database.schema.table`, that also holds the result; the other
                options are as for `serve_stream_table`.

        Raises:
            MillstreamError: NAME_TAKEN, SCHEDULE_INVALID, MODE_INVALID, UNSUPPORTED_SQL, ...
        """
        mode, serve = parse_mode(refresh_mode), _serve_options(serve_to, user_triggers, owner, grants)
        parsed = TableName.parse(name)
        self._stream_tables.create(parsed, query, schedule, mode, dialect, serve, initialize=initialize)

    def replace_stream_table(
        self,
        name: str,
        query: str,
        *,
        schedule: str | None = None,
        refresh_mode: str | None = None,
        initialize: bool = True,
        dialect: str | None = None,
        serve_to: str | None = None,
        user_triggers: str | None = None,
        owner: str | None = None,
        grants: Sequence[str] = (),
    ) -> None:
        """Replace the definition of an existing stream table, as CREATE OR REPLACE does.

        The new definition takes effect with its contents, or nothing changes. An identical definition changes nothing,
        and one that differs only in schedule, mode or serving changes only those.

        Args:
            initialize: whether the new contents are loaded; otherwise it is empty until its next refresh.
            serve_to: where it is served from now on; a table it was served as under another name is dropped.

        Raises:
            MillstreamError: as `create_stream_table` and `alter_stream_table`.
        """
        serve, parsed = _serve_options(serve_to, user_triggers, owner, grants), TableName.parse(name)
        self._stream_tables.replace(parsed, query, schedule, refresh_mode, dialect, serve, initialize=initialize)

    def alter_stream_table(
        self,
        name: str,
        *,
        query: str | None = None,
        schedule: str | None = None,
        refresh_mode: str | None = None,
        status: str | None = None,
        dialect: str | None = None,
    ) -> None:
        """Change a stream table; None leaves an option as it is.

        A new query takes effect with its contents, or nothing changes; the same holds for another refresh mode that
        needs other stored tables. A table that was never loaded stays empty.

        Args:
            dialect: of the new query, `spark` or `postgres`; by default that of the old one.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, INCOMPATIBLE_CHANGE, CYCLE, SCHEDULE_INVALID, MODE_INVALID,
                STATUS_INVALID; what is wrong with the query, or why it cannot be loaded.
        """
        self._stream_tables.alter(TableName.parse(name), query, schedule, refresh_mode, status, dialect)

    def drop_stream_table(self, name: str, *, cascade: bool = False) -> None:
        """Drop a stream table and the table it is served as; with `cascade` also everything that reads one of them.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, DEPENDENTS_EXIST; DATABASE_UNREACHABLE if it is served there.
        """
        self._stream_tables.drop(TableName.parse(name), cascade=cascade)

    # PostgreSQL databases

    def attach(self, name: str, url: str, *, cdc: str = "auto", numeric: Mapping[str, str] | None = None) -> None:
        """Make the tables of a PostgreSQL database readable as `name.schema.table`.

        If a database is already attached under that name, its address, `cdc` and the ranges in `numeric` change;
        ranges of other columns stay.

        Args:
            url: its address, without a password: `postgresql://user@host/database` with a passfile, `service=NAME`, or
                `env:NAME`, an environment variable that holds the url.
            cdc: how changes are captured: by `trigger`, from the `wal`, or `auto`: by triggers until the WAL can be
                read.
            numeric: the ranges of columns whose type is `numeric` without a precision, or with one above 38, e.g.
                `{"public.orders.price": "decimal(30,4)"}`; the default is `decimal(38,18)`, and `"default"` restores
                it. A stream table that reads such a column is reinitialised.

        Raises:
            MillstreamError: NAME_TAKEN, NAME_INVALID, ADDRESS_INVALID, SECRET_IN_ADDRESS, DATABASE_UNREACHABLE,
                DATABASE_UNFIT, PRIVILEGE_MISSING with the GRANTs to run; of `numeric` UNKNOWN_TABLE, UNKNOWN_COLUMN,
                UNSUPPORTED_TYPE for a column that takes no range, SETTING_INVALID for an invalid range.
        """
        self._attaching.attach(name, url, cdc, numeric or {})

    def detach(self, name: str, *, cascade: bool = False, forget: bool = False) -> None:
        """Remove everything millstream created in a database, and forget it; a warning lists what others must remove.

        Args:
            cascade: drop the stream tables that read it or are served into it, too.
            forget: leave the database as it is, with the tables served into it, e.g. because it no longer exists;
                its owner can run `detach_script`.

        Raises:
            MillstreamError: NOT_ATTACHED, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        database = self._attaching.get(name).name
        for table in self._attaching.dependents(database) if cascade else ():
            if self._catalog.find(table) is not None:  # it may have been dropped with an earlier one
                self._stream_tables.drop(table, cascade=True, lost=database if forget else None)
        self._attaching.detach(database, forget=forget)

    def detach_script(self, name: str) -> str:
        """The SQL that removes what millstream created in a database, for its owner to run without millstream.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        return self._attaching.script(name)

    def sources(self) -> list[SourceStatus]:
        """What is captured from attached databases: how, up to which position, and how stale it is."""
        return self._attaching.sources()

    def slot_health(self) -> list[SlotHealth]:
        """The replication slots of databases that are captured from their WAL, with the tables read from each."""
        return slots_of(self._catalog, self._connections)

    def check_cdc_health(self) -> list[CdcHealth]:
        """The captured tables: how each is captured, how far behind that is, and what is wrong."""
        return captures_of(self._catalog, self._connections, self._settings.slot_lag_alert_bytes)

    # Serving

    def serve_stream_table(
        self,
        name: str,
        to: str,
        *,
        user_triggers: str | None = None,
        owner: str | None = None,
        grants: Sequence[str] = (),
    ) -> None:
        """Serve a stream table's result as a real table of an attached database, from now on.

        Args:
            to: `database.schema.table`, which must not exist; or the name it is already served as, to change
                the given options.
            user_triggers: `auto` lets triggers that users put on it fire, `off` keeps them from firing; by default the
                setting of that name.
            owner: the role that should own it; our role must be a member of it.
            grants: roles that may read it, or PUBLIC.

        Raises:
            MillstreamError: NOT_ATTACHED, NAME_TAKEN, PRIVILEGE_MISSING, SERVE_FAILED, DATABASE_UNREACHABLE.
        """
        options = ServeOptions(to, user_triggers, owner, tuple(grants))
        self._stream_tables.serve(TableName.parse(name), options)

    def stop_serving(self, name: str, *, cascade: bool = False, keep_table: bool = False) -> None:
        """Drop the table a stream table is served as.

        Args:
            cascade: drop the views that read it there, too.
            keep_table: leave it to its users; also use this if its database no longer exists.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        self._stream_tables.stop_serving(TableName.parse(name), cascade=cascade, keep_table=keep_table)

    # Refreshing

    def refresh_stream_table(self, name: str, *, mode: str | None = None) -> RefreshResult:
        """Bring a stream table, and first what it reads, up to date; `mode` is for this table and refresh only.

        Raises:
            MillstreamError: SUSPENDED, FULL_REQUIRED, SOURCE_MISSING, SOURCE_CHANGED, REFRESH_FAILED, ...
        """
        parsed = parse_mode(mode) if mode is not None else None
        return self._refreshing.refresh(TableName.parse(name), InitiatedBy.MANUAL, parsed)

    def refresh_stream_tables(
        self, names: Sequence[str] | None = None, *, mode: str | None = None
    ) -> list[RefreshOutcome]:
        """Bring stream tables, and first what they read, up to date in one pass at one frontier.

        If one fails, those that do not read it are still refreshed; side by side, where they do not read each other.

        Args:
            names: unless given, all that are not suspended.
            mode: for the named tables and this refresh only.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE; SUSPENDED if one of them, or one that they read, is suspended.
        """
        return self._refreshing.refresh_named(names, parse_mode(mode) if mode is not None else None)

    def wait_for(self, name: str, after: After = None, *, timeout: float | None = None) -> WaitResult:
        """Wait until a stream table, and the table it is served as, show what was committed.

        While `millstream run` refreshes the table, this waits for it to do so; otherwise it refreshes the table itself.

        Args:
            after: a place in the WAL of a PostgreSQL database (`pg_current_wal_lsn()`, read after the commit), the id
                of one of its transactions (`pg_current_xact_id()`), or a version of a Delta table. If the table reads
                more than one database or table, a mapping by their names, e.g. `{"shop": 1234, "orders": 7}`. By
                default all that is committed now in everything it reads.
            timeout: seconds; by default there is no limit. A refresh that has begun is not interrupted.

        Raises:
            MillstreamError: WAIT_TIMEOUT, WAIT_INVALID, SUSPENDED, DATABASE_UNREACHABLE; the errors of a refresh.
        """
        return self._waiting.wait(TableName.parse(name), after, timeout)

    # Running by itself

    def run(
        self,
        stop: threading.Event | None = None,
        *,
        on_activity: Callable[[Activity], None] | None = None,
        on_standby: Callable[[], None] | None = None,
        reload: threading.Event | None = None,
    ) -> None:
        """Keep all stream tables fresh by their schedules, until `stop` is set; the running refreshes are finished.

        Only one process refreshes a lake by itself. If another one does, this one stands by, with Spark started, and
        takes over when the other one ends.

        Args:
            on_activity: called with what is due, running and late, each time something is decided.
            on_standby: called once if another process refreshes the lake.
            reload: when it is set, the settings are read again, and the event is cleared.

        Raises:
            MillstreamError: LEADERSHIP_LOST if another process has taken over; JVM_LOST if Spark's process has ended;
                OUT_OF_MEMORY; LAKE_ON_NETWORK.
        """
        stop = stop or threading.Event()
        if self._catalog.is_embedded and not self._settings.allow_network_file_system:
            refuse_network(self._root)
        self._starter.get()
        clock = lambda: self._clock()  # noqa: E731 - tests set another one
        with leading(self._catalog, self._locks, stop, clock, __version__, on_standby or (lambda: None)) as epoch:
            if epoch is None:
                return
            runtime = self._runtime
            clients = CallServer(
                self, __version__, self._config, lambda: self._statements(new_worker_session(self.spark)).run
            )
            sources = SourceWatch(
                catalog=self._catalog,
                captures=runtime.captures,
                store=lambda: runtime.workers.here().store,
                settings=lambda: self._settings,
                clock=clock,
            )
            with (
                Dispatcher(self._sinks(self._settings), names=self._settings.alerted_events) as alerts,
                clients.listening(self._root, stop),
                closing(sources),
            ):
                daemon = Daemon(
                    catalog=self._catalog,
                    refreshing=self._refreshing,
                    sources=sources,
                    look=runtime.quick_look.look,
                    maintain=runtime.maintenance.run,
                    settings=lambda: self._settings,
                    clock=clock,
                    alerts=alerts,
                    on_activity=on_activity or (lambda _: None),
                    reload=reload or threading.Event(),
                    reload_settings=lambda: self._reload(alerts),
                )
                daemon.run(epoch, stop)

    def reload_settings(self) -> Reloaded:
        """Read the settings again; those that can change while the lake is open take effect at once.

        Raises:
            MillstreamError: SETTING_INVALID; then nothing changes.
        """
        result = reloaded(self._settings, self._read_settings())
        self._sinks(result.settings)  # raises if an address is not set
        self._settings = result.settings
        self._starter.use(result.settings)
        return result

    def _reload(self, alerts: Dispatcher) -> Reloaded:
        result = self.reload_settings()
        alerts.use(self._sinks(result.settings), result.settings.alerted_events)
        return result

    def _sinks(self, settings: Settings) -> list[AlertSink]:
        return sinks_of(settings, self._catalog, self._connections)

    def cancel(self, name: str) -> bool:
        """Stop the running refresh of a stream table, also one of another process; false if none is running.

        It returns at once. The refresh ends as FAILED with REFRESH_CANCELLED, which does not count as an error; the old
        contents stay readable. One that has already committed its result is complete, and only serving it is stopped.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE.
        """
        return request_cancel(self._catalog, self._locks, self._catalog.get(TableName.parse(name)), self._clock())

    def pause(self) -> None:
        """Pause the automatic refreshes of all stream tables, by whichever process; explicit ones still work."""
        self._catalog.set_paused(True)

    def resume(self) -> None:
        """Resume automatic refreshes."""
        self._catalog.set_paused(False)

    def daemon_status(self) -> DaemonStatus:
        """Which process refreshes the lake by itself, and when it last looked for work."""
        found = self._catalog.leadership()
        leader = found.leader
        return DaemonStatus(
            version=__version__,
            leader=None if leader is None else f"{leader.pid}@{leader.host}",
            leader_version=None if leader is None else leader.version,
            since=None if leader is None else leader.since,
            woke_at=found.woke_at,
            is_paused=found.is_paused,
        )

    def maintain(self, *, seconds: float | None = None, dry_run: bool = False) -> list[MaintenanceResult]:
        """Keep the storage small: compact files, delete what nobody needs any more, prune the history.

        Only tables that millstream stores are touched: results, mirrors and landings. It is done in bites, beside
        refreshes: none waits for it or fails because of it.

        Args:
            seconds: begin no bite after this time; None continues until everything is done.
            dry_run: only report what would be done first.

        Returns:
            What was done, and what was skipped with the reason; nothing if there was nothing to do.

        Raises:
            MillstreamError: LOCK_TIMEOUT if another process is maintaining the lake.
        """
        return self._runtime.maintenance.run(seconds, dry_run=dry_run)

    # Monitoring

    def status(self) -> list[StreamTableStatus]:
        """All stream tables, with how stale they are."""
        return with_waits(self._catalog)

    def refresh_stats(self) -> list[RefreshStats]:
        """Per stream table, the totals of its refreshes."""
        return list(self._catalog.stats(stale_after(self._catalog)))

    def refresh_history(self, name: str | None = None, limit: int = 20) -> list[RefreshRecord]:
        """The last refreshes, the newest first."""
        parsed = TableName.parse(name) if name is not None else None
        if parsed is not None:
            self._catalog.get(parsed)
        return [r.as_record() for r in self._catalog.history(parsed, limit)]

    def events(
        self,
        *,
        after_id: int | None = None,
        since: datetime | None = None,
        names: Sequence[str] = (),
        limit: int | None = 100,
    ) -> list[Event]:
        """What happened, in the order of recording: refreshes, failures, staleness, capture, leaders.

        Args:
            after_id: only events after this one; with a limit the first of them, without `after_id` the last ones.
            since: only events of this time or later.
            names: only these events; none means all.

        Raises:
            MillstreamError: EVENT_UNKNOWN.
        """
        return list(self._catalog.events(after_id, since, parse_names(names) or None, limit))

    def staleness(self, name: str) -> float | None:
        """Seconds since the data timestamp; None before the first refresh."""
        stamp = self._catalog.get(TableName.parse(name)).data_timestamp
        return (self._clock() - stamp).total_seconds() if stamp is not None else None

    def next_due(self, name: str) -> datetime | None:
        """When a stream table is due to be refreshed next; None if it is suspended, or refreshed only on request.

        A cron expression uses the time zone that the query was defined in; CALCULATED follows the table's dependents.
        """
        return next_due(self._catalog, TableName.parse(name), self._clock())

    def explain(self, name: str) -> Explanation:
        """How a stream table is maintained."""
        table = self._catalog.get(TableName.parse(name))
        recorded = self._runtime.recorded
        compiled = recorded.compiled(table)
        cycle = recorded.cycle_with(table, compiled)
        found = explanation(compiled, table.refresh_mode, str(table.name), cycle)
        return replace(found, reasons=(*found.reasons, *waits_of(self._catalog, str(table.name))))

    def validate(self, query: str, dialect: str | None = None) -> Explanation:
        """How a query would be maintained; nothing is created.

        Raises:
            MillstreamError: what is wrong with it, or why it cannot be maintained incrementally.
        """
        compiled = self._runtime.compiler.compile(query, RefreshMode.DIFFERENTIAL, dialect)
        return explanation(compiled, RefreshMode.DIFFERENTIAL)

    def dag(self) -> Dag:
        """Which tables and views each stream table reads."""
        return dag_of(self._catalog)

    def verify(self, name: str, *, against: str | None = None) -> VerifyResult:
        """Compare the contents with the query at the frontier.

        Args:
            against: None compares with Spark's answer to the query; `postgres` with PostgreSQL's own, if everything
                that the query reads, through stream tables and views, is in one attached database, in its SQL.
                The table is then refreshed first: PostgreSQL can only be queried under the snapshot of a refresh.

        Raises:
            MillstreamError: NOT_POPULATED, SOURCE_MISSING, FRONTIER_LOST; ORACLE_INVALID; with `postgres`
                NOT_COMPARABLE, ORACLE_FAILED, VALUE_UNSUPPORTED, and the errors of a refresh.
        """
        return self._verifying.verify(name, against)


def _serve_options(
    to: str | None, user_triggers: str | None, owner: str | None, grants: Sequence[str]
) -> ServeOptions | None:
    return ServeOptions(to, user_triggers, owner, tuple(grants)) if to is not None else None
