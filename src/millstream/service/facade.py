"""`connect` and `Millstream`: the public calls, each a few lines over the parts that do the work."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from millstream.catalog import Catalog
from millstream.catalog.facade import utc_now
from millstream.catalog.models import SourceKind, StreamTable
from millstream.engine.analyzer import explained
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName, in_double_quotes, split_name
from millstream.refresh.coordinator import Witness
from millstream.refresh.full_text import run_text
from millstream.refresh.inputs import base_tables, bind_inputs, paths_of
from millstream.refresh.locks import locks_for
from millstream.refresh.runner import OutdatedError
from millstream.refresh.verify import compare, contents_of
from millstream.results import (
    Action,
    CdcHealth,
    Explanation,
    InitiatedBy,
    RefreshMode,
    RefreshRecord,
    RefreshResult,
    RefreshStats,
    SlotHealth,
    SourceStatus,
    Status,
    StreamTableStatus,
    VerifyResult,
)
from millstream.scheduler.dag import Dag
from millstream.scheduler.schedule import CALCULATED, Schedule
from millstream.service.attached_reads import readable
from millstream.service.attaching import Attaching
from millstream.service.cdc_health import captures_of, slots_of
from millstream.service.engine import Engine
from millstream.service.explain import explanation
from millstream.service.notices import NoticeWarning, tell
from millstream.service.replacing import TRIES, Change, dag_of, kept_changing
from millstream.service.schedules import checked_schedule, schedule_of
from millstream.service.serving import ServeOptions
from millstream.service.statements import Statements
from millstream.service.words import parse_mode, parse_oracle, parse_status
from millstream.settings import Settings

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

DEFAULT_LAKE = "./lake"
LAKE_VARIABLE = "MILLSTREAM_LAKE"
CONFIG_FILE = "millstream.toml"
Progress = Callable[[str], None]


def connect(
    lake: str | Path | None = None,
    *,
    config: str | Path | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Millstream:
    """Open a lake; the directory is made if it is not there. Spark is started by the first call that needs it.

    Args:
        lake: the lake's directory; by default what the environment variable MILLSTREAM_LAKE says, else `./lake`.
        config: a `millstream.toml`; by default the one in the lake's directory, if any.
        spark: an existing session to work in; by default one is started for the lake.
        progress: called with a few words when a longer piece of work begins.

    Raises:
        MillstreamError: LAKE_UNWRITABLE, SETTING_INVALID, CATALOG_UNAVAILABLE.
    """
    root = Path(lake if lake is not None else os.environ.get(LAKE_VARIABLE) or DEFAULT_LAKE).resolve()
    found = Path(config) if config is not None else root / CONFIG_FILE
    settings = Settings.load(found) if config is not None or found.exists() else Settings()

    def logged(phase: str) -> None:
        _log.info("%s", phase)
        if progress is not None:
            progress(phase)

    return Millstream(root, settings, spark, logged)


class Millstream:
    """A lake and its stream tables. Close it, or use it in a `with` block."""

    def __init__(self, root: Path, settings: Settings, spark: SparkSession | None, progress: Progress) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise MillstreamError(
                Code.LAKE_UNWRITABLE, f"{root} cannot be made: {e.strerror}", hint="choose a directory you may write to"
            ) from e
        self._root = root
        self._settings = settings
        self._progress = progress
        self._clock: Callable[[], datetime] = utc_now
        self._catalog = Catalog.open(settings.catalog_url or root)
        self._locks = locks_for(self._catalog, root)
        self._attaching = Attaching(self._catalog, self._locks, settings, root, lambda: self._clock())
        self._started: Engine | None = None
        self._is_closed = False
        self._starting = threading.RLock()
        if spark is not None:
            self._start(spark)

    @property
    def spark(self) -> SparkSession:
        """The Spark session; it is started by the first call that needs it."""
        return self._engine.spark

    @property
    def _engine(self) -> Engine:
        with self._starting:
            if self._is_closed:
                raise MillstreamError(Code.LAKE_CLOSED, f"{self._root} was closed", hint="open it again with connect")
            return self._started or self._start(None)

    def _start(self, spark: SparkSession | None) -> Engine:
        try:
            self._started = Engine(
                self._root, self._settings, self._catalog, self._locks, self._clock, self._progress, spark
            )
        except BaseException:
            if spark is not None:
                self.close()
            raise
        return self._started

    def close(self) -> None:
        """Give the session and the catalog back."""
        with self._starting:
            self._is_closed = True
            self._locks.close()
            self._catalog.close()
            if self._started is not None:
                self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Data

    def sql(self, text: str) -> DataFrame:
        """Run one statement: millstream's own, or any of Spark's.

        Raises:
            MillstreamError: what is wrong with it, and where.
        """
        engine = self._engine
        return Statements(self, engine.lake, self._catalog, self._settings, engine.spark).run(text)

    def table(self, name: str) -> DataFrame:
        """A stream table, table or view as a DataFrame; also `shop.public.orders` of an attached database.

        Raises:
            MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS.
        """
        lake = self._engine.lake
        lake.sync()
        try:
            parts = split_name(name)
            if lake.attached.database(parts) is not None:
                trusted, exact = self._settings.trusted_roles, in_double_quotes(name)
                return self.spark.table(readable(lake, self.spark, parts, trusted, exact))
            return self.spark.table(lake.spark_name(TableName.parse(name)))
        except SPARK_ERRORS as e:
            raise explained(e, name) from e

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
            dialect: `spark` or `postgres`; unless given, `postgres` where every table it reads, through stream tables
                and views, is one of a PostgreSQL database.
            serve_to: a table of an attached database, `database.schema.table`, that shall hold the result too; the
                others are as for `serve_stream_table`.

        Raises:
            MillstreamError: NAME_TAKEN, SCHEDULE_INVALID, MODE_INVALID, UNSUPPORTED_SQL, or what else is wrong.
        """
        parsed = TableName.parse(name)
        options = ServeOptions(serve_to, user_triggers, owner, tuple(grants)) if serve_to is not None else None
        if options is not None:
            self._engine.servings.check(options)
        made = self._engine.definitions.create(
            parsed, query, CALCULATED if schedule is None else schedule, parse_mode(refresh_mode), dialect
        )
        try:
            if options is not None:
                self._engine.servings.declare(made, options)
            if initialize:
                self._refresh(parsed, InitiatedBy.INITIAL)
        except BaseException:
            self._engine.servings.undo(made)
            self._engine.definitions.drop(parsed, cascade=False)
            raise

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
        """What CREATE OR REPLACE does to a stream table that exists: another definition under the same name.

        The new definition takes effect with its contents, or nothing changes. One that is the same in every respect
        does nothing, and one that differs in schedule, mode or serving only changes those.

        Args:
            initialize: whether the new contents are loaded; otherwise it is empty until its next refresh.
            serve_to: where it is to be served from now on; what it was served as under another name is dropped.

        Raises:
            MillstreamError: as `create_stream_table` and `alter_stream_table`.
        """
        options = ServeOptions(serve_to, user_triggers, owner, tuple(grants)) if serve_to is not None else None
        self._engine.replacements.apply(
            TableName.parse(name),
            Change(
                query=query,
                dialect=dialect or self._engine.definitions.default_dialect(query),
                mode=parse_mode(refresh_mode) if refresh_mode is not None else None,
                schedule=self._checked(schedule) if schedule is not None else None,
                serve=options,
                initialize=initialize,
            ),
        )

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
        """Change a stream table; None leaves a thing as it is.

        A new query takes effect with its contents, or nothing changes; so does another refresh mode where it needs
        other stored tables. A table that was never loaded stays so.

        Args:
            dialect: of the new query, `spark` or `postgres`; that of the old one unless given.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, INCOMPATIBLE_CHANGE, CYCLE, SCHEDULE_INVALID, MODE_INVALID,
                STATUS_INVALID; what is wrong with the query, or why it cannot be loaded.
        """
        parsed = TableName.parse(name)
        change = Change(
            query=query,
            dialect=dialect,
            mode=parse_mode(refresh_mode) if refresh_mode is not None else None,
            schedule=self._checked(schedule) if schedule is not None else None,
            status=parse_status(status) if status is not None else None,
        )
        if query is not None or change.mode not in (None, self._catalog.get(parsed).refresh_mode):
            self._engine.replacements.apply(parsed, change)
        else:
            if change.schedule is not None:
                checked_schedule(change.schedule, self._catalog.get(parsed).definition.settings)
            self._catalog.alter_stream_table(parsed, schedule=change.schedule, status=change.status)

    def _checked(self, schedule: str) -> str:
        """A schedule's text; that it fits the table's time zone is seen when it is set."""
        return Schedule.parse(schedule, min_seconds=self._settings.min_schedule_seconds).text

    def drop_stream_table(self, name: str, *, cascade: bool = False) -> None:
        """Drop a stream table and what it is served as; with `cascade` also what reads it, here and there.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, DEPENDENTS_EXIST; DATABASE_UNREACHABLE if it is served there.
        """
        self._drop(TableName.parse(name), cascade=cascade)

    def _drop(self, parsed: TableName, *, cascade: bool, lost: str | None = None) -> None:
        """Drop a stream table; `lost` is a database that is not to be reached for any more."""
        self._catalog.get(parsed)
        readers = self.dag().downstream([str(parsed)]) if cascade else ()
        ids = [t.id for n in (str(parsed), *readers) if (t := self._catalog.find(TableName.parse(n))) is not None]
        with self._locks.acquire(ids):  # not while one of them is being refreshed
            is_refused = not cascade and self._catalog.dependents(parsed)
            for table_id in () if is_refused else reversed(ids):
                if (table := self._catalog.find_by_id(table_id)) is not None:
                    self._engine.servings.stop(table, cascade=cascade, lost=lost)
                    self._engine.definitions.sweep(table)
            self._engine.definitions.drop(parsed, cascade=cascade, lost=lost)

    # PostgreSQL databases

    def attach(self, name: str, url: str, *, cdc: str = "auto", numeric: Mapping[str, str] | None = None) -> None:
        """Make the tables of a PostgreSQL database readable as `name.schema.table`.

        Of a database that is attached under that name already, it changes the address, `cdc` and the ranges in
        `numeric`; ranges of other columns stay.

        Args:
            url: where it is, without a password: `postgresql://user@host/database` with a passfile, `service=NAME`, or
                `env:NAME`, a variable that holds the url.
            cdc: how changes are captured: by `trigger`, from the `wal`, or `auto`: by triggers until the WAL can be
                read.
            numeric: the ranges of columns whose type is `numeric` without a precision, or with one above 38, e.g.
                `{"public.orders.price": "decimal(30,4)"}`; without one it is `decimal(38,18)`, as it is again after
                `"default"`. A stream table that reads such a column is reinitialized.

        Raises:
            MillstreamError: NAME_TAKEN, NAME_INVALID, ADDRESS_INVALID, SECRET_IN_ADDRESS, DATABASE_UNREACHABLE,
                DATABASE_UNFIT, PRIVILEGE_MISSING with the GRANTs to run; of `numeric` UNKNOWN_TABLE, UNKNOWN_COLUMN,
                UNSUPPORTED_TYPE for a column that takes no range, SETTING_INVALID for one that is none.
        """
        before = self._catalog.find_database(name.strip().lower())
        after = self._attaching.attach(name, url, cdc, numeric or {})
        if before is not None and before.address != after.address and self._started is not None:
            self._started.server.disconnect(before)

    def detach(self, name: str, *, cascade: bool = False, forget: bool = False) -> None:
        """Remove everything millstream made in a database, and forget it; a warning tells what others must remove.

        Args:
            cascade: drop the stream tables that read it or are served into it, too.
            forget: leave the database as it is, with the tables served into it, e.g. because it is gone;
                `detach_script` is what its owner can run.

        Raises:
            MillstreamError: NOT_ATTACHED, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        attached = self._attaching.get(name)
        database = attached.name
        for table in self._attaching.dependents(database) if cascade else ():
            if self._catalog.find(table) is not None:  # it may have gone with one before it
                self._drop(table, cascade=True, lost=database if forget else None)
        self._attaching.detach(database, forget=forget)
        if self._started is not None:
            self._started.server.disconnect(attached)

    def detach_script(self, name: str) -> str:
        """The SQL that removes what millstream made in a database, for its owner to run without millstream.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        return self._attaching.script(name)

    def sources(self) -> list[SourceStatus]:
        """What is captured of attached databases, how, how far and how stale it is."""
        return self._attaching.sources()

    def slot_health(self) -> list[SlotHealth]:
        """The replication slots of databases that are captured by their WAL, with the tables read from each."""
        return slots_of(self._catalog)

    def check_cdc_health(self) -> list[CdcHealth]:
        """The captured tables: how each is captured, how far behind that is, and what is wrong."""
        return captures_of(self._catalog, self._settings.slot_lag_alert_bytes)

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
        """Have a stream table's result also as a real table of an attached database, from now on.

        Args:
            to: `database.schema.table`, of which nothing is there yet; or the name it is served as already, to change
                the options that are given.
            user_triggers: `auto` lets triggers that users put on it fire, `off` keeps them from firing; by default the
                setting of that name.
            owner: a role that shall own it, of which ours is a member.
            grants: roles that may read it, or PUBLIC.

        Raises:
            MillstreamError: NOT_ATTACHED, NAME_TAKEN, PRIVILEGE_MISSING, SERVE_FAILED, DATABASE_UNREACHABLE.
        """
        options = ServeOptions(to, user_triggers, owner, tuple(grants))
        table = self._catalog.get(TableName.parse(name))
        with self._locks.acquire([table.id]):
            table = self._catalog.get(table.name)
            if (
                self._engine.servings.declare(table, options) is None
                or not table.is_populated
                or table.public_stage.version is None
            ):
                return  # it is served, or its first refresh serves it
            try:
                self._engine.server.serve(table, self._engine.workers.here().store)
            except BaseException:
                self._engine.servings.undo(table)
                raise

    def stop_serving(self, name: str, *, cascade: bool = False, keep_table: bool = False) -> None:
        """Drop the table a stream table is served as.

        Args:
            cascade: drop the views that read it there, too.
            keep_table: leave it to its users as it is; also the way out if its database is no more.

        Raises:
            MillstreamError: NOT_A_STREAM_TABLE, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        table = self._catalog.get(TableName.parse(name))
        with self._locks.acquire([table.id]):
            self._engine.servings.stop(table, cascade=cascade, keep_table=keep_table)

    # Refreshing

    def refresh_stream_table(self, name: str, *, mode: str | None = None) -> RefreshResult:
        """Bring a stream table, and first what it reads, up to date; `mode` is for this table and this time only.

        Raises:
            MillstreamError: SUSPENDED, FULL_REQUIRED, SOURCE_MISSING, SOURCE_CHANGED, REFRESH_FAILED, ...
        """
        parsed = parse_mode(mode) if mode is not None else None
        return self._refresh(TableName.parse(name), InitiatedBy.MANUAL, parsed)

    def _refresh(
        self,
        name: TableName,
        initiated_by: InitiatedBy,
        mode: RefreshMode | None = None,
        witness: Witness | None = None,
    ) -> RefreshResult:
        self._catalog.get(name)
        followed: Counter[str] = Counter()
        reloaded: RefreshResult | None = None
        while True:
            self._engine.lake.sync()
            try:
                chain = [TableName.parse(n) for n in self.dag().refresh_order([str(name)])]
            except MillstreamError:
                self._catalog.get(name)  # says that another process has dropped it meanwhile
                raise
            try:
                result = self._engine.coordinator.refresh(chain, initiated_by, mode, witness)
            except OutdatedError as outdated:
                self._progress(f"compiling {outdated.table.name} again: {outdated.reason}")
                is_last = outdated.table.name == name
                loaded = self._engine.replacements.follow(outdated, initiated_by, mode if is_last else None)
                if is_last and loaded is not None:
                    if witness is None:
                        return loaded
                    reloaded = loaded  # the witness has to see the chain at one snapshot
                followed[outdated.table.id] += 1
                if followed[outdated.table.id] >= TRIES:
                    raise kept_changing(outdated.table.name) from None
            else:
                return reloaded or result

    # Looking

    def status(self) -> list[StreamTableStatus]:
        """All stream tables, with how stale they are."""
        return list(self._catalog.statuses())

    def refresh_stats(self) -> list[RefreshStats]:
        """Per stream table, its refreshes added up."""
        stale_after: dict[TableName, float] = {}
        tables = self._catalog.list()
        schedules = {str(t.name): schedule_of(t) for t in tables}
        for name, schedule in self.dag().effective_schedules(schedules).items():
            if schedule is not None and schedule.seconds is not None:
                stale_after[TableName.parse(name)] = float(schedule.seconds)
        return list(self._catalog.stats(stale_after))

    def refresh_history(self, name: str | None = None, limit: int = 20) -> list[RefreshRecord]:
        """The last refreshes, the newest first."""
        parsed = TableName.parse(name) if name is not None else None
        if parsed is not None:
            self._catalog.get(parsed)
        return [r.as_record() for r in self._catalog.history(parsed, limit)]

    def staleness(self, name: str) -> float | None:
        """Seconds since the data timestamp; None before the first refresh."""
        stamp = self._catalog.get(TableName.parse(name)).data_timestamp
        return (self._clock() - stamp).total_seconds() if stamp is not None else None

    def next_due(self, name: str) -> datetime | None:
        """When a stream table is due to be refreshed next; None for one that is suspended, or only when it is asked.

        A cron expression is about the time zone that the query was defined in; CALCULATED goes by what reads the table.
        """
        table = self._catalog.get(TableName.parse(name))
        schedules = {str(t.name): schedule_of(t) for t in self._catalog.list()}
        schedule = self.dag().effective_schedules(schedules)[str(table.name)]
        if schedule is None or table.status is Status.SUSPENDED:
            return None
        return schedule.next_due(table.data_timestamp, self._clock())

    def explain(self, name: str) -> Explanation:
        """How a stream table is maintained."""
        table = self._catalog.get(TableName.parse(name))
        return explanation(self._engine.definitions.compiled(table), table.refresh_mode, str(table.name))

    def validate(self, query: str, dialect: str | None = None) -> Explanation:
        """How a query would be maintained; nothing is created.

        Raises:
            MillstreamError: what is wrong with it, or why it cannot be maintained incrementally.
        """
        compiled = self._engine.definitions.compile(query, RefreshMode.DIFFERENTIAL, dialect)
        return explanation(compiled, RefreshMode.DIFFERENTIAL)

    def dag(self) -> Dag:
        """What reads what."""
        return dag_of(self._catalog)

    def verify(self, name: str, *, against: str | None = None) -> VerifyResult:
        """Compare the contents with the query at the frontier.

        Args:
            against: None compares with what Spark makes of the query; `postgres` with PostgreSQL's own answer, where
                all that the query reads, through stream tables and views, is in one attached database, in its SQL.
                The table is refreshed then, as usual: only under the snapshot of a refresh can PostgreSQL be asked.

        Raises:
            MillstreamError: NOT_POPULATED, SOURCE_MISSING, FRONTIER_LOST; ORACLE_INVALID; with `postgres`
                NOT_COMPARABLE, ORACLE_FAILED, VALUE_UNSUPPORTED, and what makes a refresh fail.
        """
        table = self._catalog.get(TableName.parse(name))
        oracle = parse_oracle(against)
        if table.data_timestamp is None or table.public_stage.version is None:
            raise MillstreamError(
                Code.NOT_POPULATED,
                f"{name} has not been refreshed since it was defined",
                hint=f"REFRESH STREAM TABLE {name}",
            )
        try:
            return self._compare(table) if oracle is None else self._compare_with_postgres(table)
        except SPARK_ERRORS as e:
            raise MillstreamError(
                Code.FRONTIER_LOST,
                f"{name} cannot be compared with its query at its frontier: {first_line(e)}",
                hint="if a source was vacuumed, refresh first",
            ) from e

    def _compare_with_postgres(self, table: StreamTable) -> VerifyResult:
        if not self._catalog.databases():
            raise MillstreamError(Code.NOT_COMPARABLE, f"{table.name} reads no attached database")
        from millstream.refresh.against_postgres import AgainstPostgres, Held

        def refresh(held: Held) -> None:
            result = self._refresh(table.name, InitiatedBy.MANUAL, witness=held)
            if result.action in (Action.FULL, Action.REINITIALIZE):
                tell(
                    f"{table.name} was recomputed ({result.reason}) to reach the snapshot it is compared under: "
                    "what earlier refreshes had made of it was not compared",
                    NoticeWarning,
                )

        chain = [self._catalog.get(TableName.parse(n)) for n in self.dag().refresh_order([str(table.name)])]
        oracle = AgainstPostgres(
            self._catalog, self._settings, self._engine.definitions.compiled, chain, refresh, self._root / "verifying"
        )
        return oracle.verify(self._engine.workers.here())

    def _compare(self, table: StreamTable) -> VerifyResult:
        worker, compiled = self._engine.workers.here(), self._engine.definitions.compiled(table)
        worker.use(table.definition.settings)
        assert table.data_timestamp is not None
        paths = paths_of(base_tables(self._catalog, (table,)))
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.TABLE and paths[dependency.name] != dependency.source_id:
                raise MillstreamError(
                    Code.FRONTIER_LOST,
                    f"{dependency.name} was loaded anew since {table.name} was refreshed",
                    hint="refresh first",
                )
        inputs = bind_inputs(self._catalog, table, compiled, dict(table.frontier), paths, at_frontier=True)
        expected = run_text(worker, compiled, inputs, table.data_timestamp)
        contents = contents_of(worker.store, table, compiled)
        return compare(contents, expected, self._settings.verify_relative_tolerance)
