"""One thread's access to Spark: its own session, the Delta tables read in it, and a count of the jobs it started."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from millstream.cancellation import interrupting
from millstream.engine.analyzer import SparkAnalyzer
from millstream.engine.session import apply_semantics, new_worker_session, read_semantics
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage import DeltaStore
from millstream.naming import quote
from millstream.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Scale(StrEnum):
    """How much data the queries of a refresh move, which determines how Spark should plan them."""

    TINY = "tiny"
    """All data in one task: without exchanges, a query is one job of one stage."""
    SMALL = "small"
    """A small delta against tables of any size: the delta is sent to the tasks that scan them."""
    LARGE = "large"
    """Spark decides, at run time."""


_PLANNING = {
    Scale.TINY: {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"},
    Scale.SMALL: {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "33554432"},
    Scale.LARGE: {"spark.sql.adaptive.enabled": "true", "spark.sql.autoBroadcastJoinThreshold": "10485760"},
}


RECURSION_LIMITS = ("spark.sql.cteRecursionLevelLimit", "spark.sql.cteRecursionRowLimit")
"""Spark's own limits on rounds and rows."""


@dataclass
class Worker:
    """A session whose temporary views and settings belong to one refresh at a time."""

    spark: SparkSession
    store: DeltaStore
    analyzer: SparkAnalyzer
    _semantics: Mapping[str, str] = field(default_factory=dict)
    _scale: Scale | None = None

    def plan_for(self, scale: Scale) -> None:
        """Make Spark plan the next queries for this much data."""
        if scale is not self._scale:
            for key, value in _PLANNING[scale].items():
                self.spark.conf.set(key, value)
            self._scale = scale

    def use(self, semantics: Mapping[str, str]) -> None:
        """Set what a query's meaning depends on, unless it is already set."""
        if semantics and dict(semantics) != dict(self._semantics):
            apply_semantics(self.spark, semantics)
            self._semantics = dict(semantics)

    def frame(self, rows: pa.Table) -> DataFrame:
        """Rows that came from Spark, for it to read again: a timestamp without a time zone stays one."""
        return self.spark.createDataFrame(rows, schema=from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))

    def bind(self, name: str, frame: DataFrame) -> None:
        """Make a frame readable under a name in the session's queries."""
        frame.createOrReplaceTempView(quote(name))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """The Spark jobs of the block are interrupted when the refresh of this thread is stopped."""
        tag = f"millstream-{uuid.uuid4()}"
        add: Callable[[str], None]
        remove: Callable[[str], None]
        interrupt: Callable[[str], object]
        if hasattr(self.spark, "sparkContext"):  # the tag is the thread's: it covers other sessions as well
            context = self.spark.sparkContext
            add, remove, interrupt = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
        else:
            add, remove, interrupt = self.spark.addTag, self.spark.removeTag, self.spark.interruptTag
        add(tag)
        try:
            with interrupting(lambda: _quietly(interrupt, tag)):
                yield
        finally:
            _quietly(remove, tag)

    @contextmanager
    def counting_jobs(self) -> Iterator[JobCount]:
        """Count the Spark jobs started inside the block; unknown on Spark Connect."""
        count = JobCount()
        if not hasattr(self.spark, "sparkContext"):
            yield count
            return
        context = self.spark.sparkContext
        group = f"millstream-{uuid.uuid4()}"
        context.setJobGroup(group, "a refresh of millstream")
        try:
            yield count
        finally:
            count.jobs = len(context.statusTracker().getJobIdsForGroup(group))
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


@dataclass
class JobCount:
    """The number of Spark jobs, known at the end of the block; None if Spark does not report it."""

    jobs: int | None = None


def _quietly(call: Callable[[str], object], tag: str) -> None:
    """A call about a tag; it has nothing left to do if the JVM has ended."""
    with suppress(*SPARK_ERRORS, OSError):
        call(tag)


class Workers:
    """A worker per thread, created on first use."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._local = threading.local()
        self._generation = 0

    def renew(self) -> None:
        """Give every thread a new session: a session keeps the SQL functions it has called as they were at the time."""
        self._generation += 1

    def here(self) -> Worker:
        """The worker of the calling thread."""
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None or self._local.generation != self._generation:
            self._local.generation = self._generation
            session = new_worker_session(self._spark)
            # a text with WITH RECURSIVE has the same limits as our own recursions
            limits = (self._settings.max_recursion, self._settings.max_recursion_rows)
            for key, limit in zip(RECURSION_LIMITS, limits, strict=True):
                session.conf.set(key, str(limit))
            worker = Worker(session, DeltaStore(session, self._settings), SparkAnalyzer(session))
            self._local.worker = worker
        return worker

    def semantics(self) -> dict[str, str]:
        """The settings of the user's session, which fix the meaning of a query created now."""
        return read_semantics(self._spark)
