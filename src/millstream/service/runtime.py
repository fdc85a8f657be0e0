"""The parts of an open lake that need Spark: its session, the workers in it, and everything that runs queries there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.capture import Captures
from millstream.catalog import Catalog
from millstream.engine.lake_schemas import use_lake
from millstream.engine.session import adopt_session, close_session, create_session
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Lake
from millstream.lake.change_feeds import ChangeFeeds
from millstream.lake.compiler import Compiler
from millstream.lake.locks import Locks
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.maintenance.executor import Maintenance
from millstream.notices import ServingWarning, warn
from millstream.passes.frontier import Frontiers
from millstream.passes.pass_runner import PassRunner
from millstream.passes.quick_look import QuickLook
from millstream.passes.running_refreshes import RunningRefreshes
from millstream.passes.table_refresh import TableRefresh
from millstream.postgres.pool import ConnectionPool
from millstream.service.definitions import Definitions
from millstream.service.replacing import Replacements
from millstream.serving.declarations import ServingDefinitions
from millstream.serving.served_keys import ServedKeys
from millstream.serving.table_server import TableServer
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class RuntimeStarter:
    """The runtime of a lake, started by the first call that needs it."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        catalog: Catalog,
        locks: Locks,
        connections: ConnectionPool,
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
    ) -> None:
        self._root = root
        self._arguments = (root, settings, catalog, locks, connections, clock, progress)
        self._settings = settings
        self._started: Runtime | None = None
        self._is_closed = False
        self._guard = threading.RLock()

    @property
    def is_started(self) -> bool:
        """Whether Spark is in use."""
        return self._started is not None

    def get(self) -> Runtime:
        """The runtime.

        Raises:
            MillstreamError: LAKE_CLOSED; why no session could be started.
        """
        with self._guard:
            if self._is_closed:
                raise MillstreamError(Code.LAKE_CLOSED, f"{self._root} was closed", hint="open it again with connect")
            return self._started or self.start(None)

    def start(self, spark: SparkSession | None) -> Runtime:
        """Start the runtime, in the caller's session if one is given."""
        self._started = Runtime(*self._arguments, spark)
        self._started.use(self._settings)
        return self._started

    def use(self, settings: Settings) -> None:
        """Work with other settings from now on, as far as `reloading` allows them to change."""
        with self._guard:
            self._settings = settings
            if self._started is not None:
                self._started.use(settings)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Allow no further start, and close the runtime after the block."""
        with self._guard:
            self._is_closed = True
            yield
            if self._started is not None:
                self._started.close()


class Runtime:
    """Starts a session for the lake, or uses the caller's.

    Raises:
        MillstreamError: JAVA_MISSING, JARS_UNRESOLVED, SESSION_FAILED, ...: why no session could be started.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        catalog: Catalog,
        locks: Locks,
        connections: ConnectionPool,
        clock: Callable[[], datetime],
        progress: Callable[[str], None],
        spark: SparkSession | None,
    ) -> None:
        self._owns_session = spark is None
        warehouse = root / "tables"
        if spark is None:
            progress("starting Spark")
            started = time.perf_counter()
            self.spark = create_session(settings, warehouse)
            _log.info("started Spark in %.0f ms", (time.perf_counter() - started) * 1000)
        else:
            self.spark = adopt_session(spark, settings)
            use_lake(spark, warehouse)
        self.workers = Workers(self.spark, settings)
        keys = ServedKeys(catalog, self.workers, lambda table: self.recorded.compiled(table))
        report = partial(warn, category=ServingWarning)
        self.server = TableServer(catalog, settings, root / "serving", keys.of, report, connections)
        self.captures = Captures(root, catalog, self.workers, locks, settings, clock, progress, connections=connections)
        try:
            self.lake = Lake(root, self.spark, self.workers, catalog)
            feeds = ChangeFeeds(catalog, self.workers, settings)
            self.compiler = Compiler(self.lake, self.workers, feeds)
            self.recorded = RecordedDefinitions(
                self.lake, catalog, self.workers, self.compiler, feeds, allow_circular=settings.allow_circular
            )
            self.definitions = Definitions(
                self.lake, catalog, self.workers, self.compiler, self.recorded, feeds, self.captures, settings
            )
            self.servings = ServingDefinitions(catalog, self.workers, self.server, settings, keys.of_query)
            self._settings = settings
            in_effect = lambda: self._settings  # noqa: E731 - some change while the lake is open
            self.refresher = TableRefresh(catalog, self.workers, in_effect, self.recorded, self.server, clock, progress)
            frontiers = Frontiers(catalog, self.workers, locks, self.recorded, self.captures, clock, progress)
            concurrency = settings.concurrent_refreshes
            running = RunningRefreshes(catalog, clock, lambda: self._settings.refresh_timeout_seconds)
            self.passes = PassRunner(
                catalog, self.workers, locks, frontiers, self.refresher, clock, progress, concurrency, running
            )
            self.quick_look = QuickLook(catalog, self.workers, self.recorded, self.captures, self.server, clock)
            self.maintenance = Maintenance(root, catalog, self.workers, locks, settings, self.server, clock, progress)
            self.replacements = Replacements(
                catalog,
                self.workers,
                locks,
                self.compiler,
                self.recorded,
                self.definitions,
                self.servings,
                self.server,
                self.passes,
                self.refresher,
                clock,
            )
            self.lake.sync()
            self.captures.end_forgotten()
        except BaseException:
            self.close()
            raise

    def use(self, settings: Settings) -> None:
        """Work with other settings from now on, as far as `reloading` allows them to change."""
        if settings.concurrent_refreshes != self._settings.concurrent_refreshes:
            self.passes.resize(settings.concurrent_refreshes)
        self._settings = settings

    def close(self) -> None:
        """Release the session and the connections to databases."""
        if (passes := getattr(self, "passes", None)) is not None:
            passes.close()
        if (quick_look := getattr(self, "quick_look", None)) is not None:
            quick_look.close()
        self.captures.close()
        if self._owns_session:
            close_session(self.spark)
