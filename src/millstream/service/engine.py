"""What an open lake needs Spark for: its session, the workers in it, and the parts that run queries there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.engine.session import adopt_session, close_session, create_session, use_lake
from millstream.engine.worker import Workers
from millstream.lake import Lake
from millstream.refresh.coordinator import Coordinator
from millstream.refresh.locks import Locks
from millstream.refresh.served_keys import ServedKeys
from millstream.refresh.serving import TableServer
from millstream.service.captured import CapturedTables
from millstream.service.definitions import Definitions
from millstream.service.notices import ServingWarning, tell
from millstream.service.replacing import Replacements
from millstream.service.serving import ServingDefinitions
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Engine:
    """Starts a session for the lake, or moves into the caller's.

    Raises:
        MillstreamError: JAVA_MISSING, JARS_UNRESOLVED, SESSION_FAILED and the like: why there is no session.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        catalog: Catalog,
        locks: Locks,
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
        keys = ServedKeys(catalog, self.workers, lambda table: self.definitions.compiled(table))
        self.server = TableServer(catalog, settings, root / "serving", keys.of, lambda text: tell(text, ServingWarning))
        self.captured = CapturedTables(root, catalog, self.workers, locks, settings, clock, progress)
        try:
            self.lake = Lake(root, self.spark, self.workers, catalog)
            self.definitions = Definitions(self.lake, catalog, self.workers, self.captured, settings)
            self.servings = ServingDefinitions(catalog, self.workers, self.server, settings, keys.of_query)
            self.coordinator = Coordinator(
                catalog, self.workers, locks, settings, self.definitions, self.captured, self.server, clock, progress
            )
            self.replacements = Replacements(
                catalog,
                self.workers,
                locks,
                self.definitions,
                self.servings,
                self.server,
                self.coordinator,
                clock,
            )
            self.lake.sync()
            self.captured.end_forgotten()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the session and the connections to databases back."""
        self.captured.close()
        self.server.close()
        if self._owns_session:
            close_session(self.spark)
