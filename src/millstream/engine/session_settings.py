"""The settings of Spark sessions: what millstream sets, where, and why.

The measurements behind them are in docs/adr/0002-session-settings.md.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.engine import jars
from millstream.engine.lake_schemas import spark_path

if TYPE_CHECKING:
    from millstream.settings import Settings

LOG_ENVIRONMENT = "MILLSTREAM_SPARK_LOG"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

DELTA_CONFS = {
    # Delta rebuilds a table's file list with a shuffle after every version: 50 partitions by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A version older than the retention may still have all its files; we check the files instead.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # In a time zone other than UTC, Delta would rebuild the state of small tables at each commit, as a self-check.
    "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
    # CREATE TABLE creates a Delta table.
    "spark.sql.sources.default": "delta",
    # Deltas are passed between Python and Spark as Arrow.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

LOCAL_CONFS = {
    # Listing local files is faster than starting a job, which Spark would do from 32 files on.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}

_STATIC_CONFS = {
    "spark.app.name": "millstream",
    "spark.sql.extensions": EXTENSION,
    "spark.sql.catalog.spark_catalog": CATALOG,
    # The refreshes of many stream tables would evict each other's generated classes (100 by default).
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Kept for the UI, which is off; they fill the heap of a process that refreshes for weeks.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
}

_EMBEDDED_CONFS = {
    # Nothing outside this machine connects to an embedded driver; its host name need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Hadoop's local file system keeps a checksum per file. When delta-rs replaces _last_checkpoint, Spark finds the old
    # checksum and retries for 3 s, once per table and process; the raw file system keeps no checksums.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

# A query's meaning depends on these: they are stored with a stream table and set again for each of its refreshes.
SEMANTIC_CONFS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.caseSensitive",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.mapKeyDedupPolicy",
)


def start_confs(settings: Settings, warehouse: Path) -> dict[str, str]:
    """All settings for a new JVM and SparkContext; the user's settings take precedence, Java options are combined."""
    embedded = settings.spark_master is None or settings.spark_master.startswith("local")
    level = "WARN" if os.environ.get(LOG_ENVIRONMENT) else "OFF"
    options = [
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        f"-Dmillstream.log.level={level}",
        "-Xss4m",  # Catalyst recurses over expressions; a long CASE or UNION overflows the default stack
    ]
    confs = {
        **_STATIC_CONFS,
        **session_confs(settings),
        **(_EMBEDDED_CONFS if embedded else {}),
        "spark.master": settings.spark_master or "local[*]",
        "spark.sql.warehouse.dir": spark_path(warehouse),
        "spark.driver.memory": _driver_memory(),
        "spark.jars": ",".join(str(jar) for jar in jars.find_jars(settings.jars)),
        **settings.spark_conf,
        "spark.millstream.owned": "true",
    }
    own_options = settings.spark_conf.get("spark.driver.extraJavaOptions", "")
    elsewhere = (os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    if "GC" not in " ".join([own_options, settings.spark_conf.get("spark.driver.defaultJavaOptions", ""), *elsewhere]):
        # a refresh is a burst of short-lived plans: throughput matters, pauses do not (measured in ADR 2)
        options.append("-XX:+UseParallelGC")
    confs["spark.driver.extraJavaOptions"] = " ".join([*map(shlex.quote, options), own_options]).strip()
    return {key: value for key, value in confs.items() if value}


def session_confs(settings: Settings) -> dict[str, str]:
    """Settings of a running session: of one we start, and of a new one in a JVM that already runs."""
    confs = {**DELTA_CONFS, "spark.sql.session.timeZone": settings.time_zone}
    if settings.spark_master is None and settings.spark_remote is None:
        confs |= {**LOCAL_CONFS, "spark.sql.shuffle.partitions": str(_cores())}
    return confs


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _driver_memory() -> str:
    """4 GB, or half of a smaller machine."""
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return f"{max(1024, min(4096, machine_mb // 2))}m"
