"""The Spark session: embedded by default, a cluster's, a Spark Connect server's or the caller's own by configuration.

One process has one JVM, and a JVM one warehouse directory and one set of schemas. A lake that finds the JVM free gets
it to itself: `default` is the lake's default schema. A lake opened while another is still open, and a lake in the
caller's own session, gets a Spark schema of its own (`use_lake`); one-part names resolve to it, since it is the
session's current schema. `spark_name` gives the right name in every case.

The figures behind the settings are in docs/adr/0002-session-settings.md.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import socket
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from millstream.engine import jars
from millstream.errors import Code, MillstreamError
from millstream.naming import DEFAULT_SCHEMA, RESERVED_PREFIX, TableName, quote

if TYPE_CHECKING:
    from millstream.settings import Settings

LOG_ENVIRONMENT = "MILLSTREAM_SPARK_LOG"

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SCHEMA_CONF = "millstream.lake.schema"  # the Spark schema that stands for the lake's default one
_PLAIN = re.compile(r"[a-z0-9_]+")  # Spark's names differ by more than their case

_DELTA_CONFS = {
    # Delta rebuilds a table's file list with a shuffle after every version: 50 partitions by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A superseded version older than the retention may still have all its files; we look at the files instead.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Where the zone is not UTC, Delta would rebuild the state of small tables at each commit, to check itself.
    "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
    # CREATE TABLE makes a Delta table.
    "spark.sql.sources.default": "delta",
    # Deltas travel between Python and Spark as Arrow.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_LOCAL_CONFS = {
    # Local files are listed faster than a job starts; from 32 files on Spark would start one.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}

_STATIC_CONFS = {
    "spark.app.name": "millstream",
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": _CATALOG,
    # Many stream tables in turn would evict each other's generated classes (100 by default).
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Kept for a UI nobody has opened; they grow the heap of a process that refreshes for weeks.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
}

_EMBEDDED_CONFS = {
    # Nothing outside this machine talks to an embedded driver; its host name need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Hadoop's local file system keeps a checksum beside each file. When delta-rs replaces _last_checkpoint, Spark finds
    # the old checksum beside it and tries again for 3 s, once per table and process; the raw one keeps none.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

# What a query means depends on these: they are stored with a stream table and set again for each of its refreshes.
SEMANTIC_CONFS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.caseSensitive",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.mapKeyDedupPolicy",
)

_lock = threading.RLock()
_holders: weakref.WeakKeyDictionary[SparkSession, Path] = weakref.WeakKeyDictionary()
_remotes: weakref.WeakKeyDictionary[SparkSession, str] = weakref.WeakKeyDictionary()


def create_session(settings: Settings, warehouse: Path) -> SparkSession:
    """Open a session whose tables lie under `warehouse`; every call gives a session of its own.

    The caller gives it back with `close_session`, or with `release_session` when it may be used a little longer.

    Raises:
        MillstreamError: JAVA_MISSING, JARS_UNRESOLVED, SESSION_FAILED, SESSION_WITHOUT_DELTA, DEPENDENCY_MISSING.
    """
    warehouse = warehouse.resolve()
    with _lock:
        if settings.spark_remote:
            spark = _connect(settings.spark_remote)
        else:
            spark = _classic(settings, warehouse)
        _require_delta(spark)
        _configure(spark, settings)
        use_lake(spark, warehouse)
        _holders[spark] = warehouse
        return spark


def adopt_session(spark: SparkSession, settings: Settings | None = None) -> SparkSession:
    """Check that an existing session can work with Delta tables, and set what can be set while it runs.

    Settings of the session that are only a matter of speed on one machine (shuffle partitions, file listing) stay as
    they are: the owner knows the cluster.

    Raises:
        MillstreamError: SESSION_WITHOUT_DELTA.
    """
    _require_delta(spark)
    silence_refusals()
    for key, value in _DELTA_CONFS.items():
        spark.conf.set(key, value)
    if settings is not None:
        spark.conf.set("spark.sql.session.timeZone", settings.time_zone)
        _set_modifiable(spark, settings.spark_conf)
    return spark


def new_worker_session(spark: SparkSession) -> SparkSession:
    """A session over the same tables that starts with the same settings and may then change its own.

    A Spark Connect session of the caller's whose address is unknown (neither ours nor in $SPARK_REMOTE) is given back
    itself: then there is one session for all.
    """
    if _is_classic(spark):
        worker = spark.newSession()
    else:  # cloneSession would do this on the server, but in Spark 4.2 a clone never lets the process end
        url = _remotes.get(spark) or os.environ.get("SPARK_REMOTE")
        if url is None:
            return spark
        worker = _connect(url)
    for key in (*_DELTA_CONFS, *_LOCAL_CONFS, *SEMANTIC_CONFS, "spark.sql.shuffle.partitions"):
        worker.conf.set(key, _conf(spark, key))
    for key, value in spark.conf.getAll.items():
        if key.startswith(_SCHEMA_CONF):
            worker.conf.set(key, value)
    worker.conf.set("spark.sql.debug.maxToStringFields", "1000000")  # plans are compared as texts: all of them
    worker.catalog.setCurrentDatabase(spark_schema(worker, DEFAULT_SCHEMA))
    return worker


def release_session(spark: SparkSession) -> None:
    """Say that a session is no longer needed; the JVM stays as it is until another lake takes it over."""
    with _lock:
        _holders.pop(spark, None)


def close_session(spark: SparkSession) -> None:
    """Give a session of `create_session` back; the last one stops Spark. Sessions of others are left alone."""
    with _lock:
        if _holders.pop(spark, None) is None:
            return
        if not _is_classic(spark) or (not _holders and _is_ours(spark.sparkContext)):
            spark.stop()


def read_semantics(spark: SparkSession) -> dict[str, str]:
    """The settings a query's meaning depends on, as they are in a session."""
    return {key: _conf(spark, key) for key in SEMANTIC_CONFS}


def apply_semantics(spark: SparkSession, semantics: Mapping[str, str]) -> None:
    """Set what `read_semantics` gave, e.g. in the session that refreshes a stream table."""
    for key in SEMANTIC_CONFS:
        if key in semantics:
            spark.conf.set(key, semantics[key])


def use_lake(spark: SparkSession, warehouse: Path) -> str:
    """Make `warehouse` the place of unqualified tables; gives the Spark schema that stands for the lake's `default`."""
    warehouse = warehouse.resolve()
    if _is_at(spark, DEFAULT_SCHEMA, warehouse):
        schema = DEFAULT_SCHEMA
    else:
        schema = "lake_" + hashlib.sha256(str(warehouse).encode()).hexdigest()[:12]
        _create_schema(spark, schema, warehouse)
    spark.conf.set(_SCHEMA_CONF, schema)
    spark.catalog.setCurrentDatabase(schema)
    return schema


def create_lake_schema(spark: SparkSession, warehouse: Path, schema: str) -> str:
    """Make a schema of a lake known to the session, under the directory Spark would use; gives its name in Spark.

    That is the same name, unless another lake in this JVM has a schema of that name, or it is an attached database's.
    """
    if schema == DEFAULT_SCHEMA:
        return spark_schema(spark, schema)
    plain = _plain(schema) if "." in schema else schema
    directory = warehouse.resolve() / f"{plain}.db"
    is_taken = spark.catalog.databaseExists(plain) and not _is_at(spark, plain, directory)
    name = f"{spark_schema(spark, DEFAULT_SCHEMA)}_{plain}" if is_taken else plain
    _create_schema(spark, name, directory)
    spark.conf.set(f"{_SCHEMA_CONF}.{schema}", name)
    return name


def spark_schema(spark: SparkSession, schema: str) -> str:
    """The name in Spark of a lake's schema, or of one of an attached database."""
    if schema == DEFAULT_SCHEMA:
        return str(spark.conf.get(_SCHEMA_CONF, DEFAULT_SCHEMA))
    return str(spark.conf.get(f"{_SCHEMA_CONF}.{schema}", _plain(schema) if "." in schema else schema))


def spark_name(spark: SparkSession, name: TableName) -> str:
    """A table's full name for a SQL text given to this session."""
    table = name.name if name.database is None else _plain(name.name)
    return f"{quote(spark_schema(spark, name.schema))}.{quote(table)}"


def _plain(name: str) -> str:
    """A name Spark's catalog takes: for one with a point or other characters it refuses, one of its own.

    >>> _plain("orders"), _plain("shop.public")
    ('orders', '__ms_shop_public_8f3ff700')
    """
    if _PLAIN.fullmatch(name):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{RESERVED_PREFIX}{re.sub('[^a-z0-9]', '_', name.lower())}_{mark}"


def _classic(settings: Settings, warehouse: Path) -> SparkSession:
    active = SparkContext._active_spark_context  # no public call asks without creating one
    if active is not None and _is_ours(active) and not _holders:
        SparkSession.builder.getOrCreate().stop()  # the lakes before us are closed; 0.3 s, and their schemas are gone
        active = None
    if active is not None:
        return SparkSession.builder.getOrCreate().newSession()
    jars.check_java()
    conf = SparkConf(loadDefaults=False)
    for key, value in _start_confs(settings, warehouse).items():
        conf.set(key, value)
    return _start(conf).newSession()


def _is_classic(spark: SparkSession) -> bool:
    return hasattr(spark, "newSession")  # Spark Connect has none


def _is_ours(context: SparkContext) -> bool:
    return context.getConf().get("spark.millstream.owned", "") == "true"


def _start(conf: SparkConf) -> SparkSession:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports each broken socket at exit
    silence_refusals()
    log = _log_file()
    try:
        if SparkContext._gateway is None:  # a JVM survives its SparkContext
            # The JVM's own warnings (incubator modules, native access) precede any log setting.
            gateway = launch_gateway(conf, {"stderr": log, "stdout": log})  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError) as e:
        raise _failed(e, log) from e
    finally:
        log.close()


def silence_refusals() -> None:
    """Keep PySpark from writing each refused query to stderr as well: the caller gets the error itself."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _log_file() -> IO[Any]:
    path = os.environ.get(LOG_ENVIRONMENT)
    if not path:
        return tempfile.TemporaryFile()
    try:
        return open(path, "ab+")
    except OSError as e:
        raise MillstreamError(Code.SETTING_INVALID, f"{LOG_ENVIRONMENT}={path} cannot be written: {e.strerror}") from e


def _failed(cause: Exception, log: IO[Any]) -> MillstreamError:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if "incubator" not in line]
    message = str(cause).strip().splitlines()
    java = next((line.strip() for line in message if line.startswith(": ")), "").removeprefix(": ")
    why = java or (lines[0] if lines else message[0] if message else type(cause).__name__)
    why = why.removeprefix('Exception in thread "main" ')
    error = MillstreamError(
        Code.SESSION_FAILED,
        f"Spark did not start: {why}",
        hint=f"check spark_master and spark_conf; {LOG_ENVIRONMENT}=<file> keeps Spark's log",
    )
    if lines:
        error.add_note("\n".join(lines[-40:]))
    return error


def _start_confs(settings: Settings, warehouse: Path) -> dict[str, str]:
    """Everything a new JVM and SparkContext get; the user's own settings win, Java options are joined."""
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
        **_session_confs(settings),
        **(_EMBEDDED_CONFS if embedded else {}),
        "spark.master": settings.spark_master or "local[*]",
        "spark.sql.warehouse.dir": _spark_path(warehouse),
        "spark.driver.memory": _driver_memory(),
        "spark.jars": ",".join(str(jar) for jar in jars.find_jars(settings.jars)),
        **settings.spark_conf,
        "spark.millstream.owned": "true",
    }
    own_options = settings.spark_conf.get("spark.driver.extraJavaOptions", "")
    elsewhere = (os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    if "GC" not in " ".join([own_options, settings.spark_conf.get("spark.driver.defaultJavaOptions", ""), *elsewhere]):
        # a refresh is a burst of short-lived plans: throughput counts, pauses do not (ADR 2 has the figures)
        options.append("-XX:+UseParallelGC")
    confs["spark.driver.extraJavaOptions"] = " ".join([*map(shlex.quote, options), own_options]).strip()
    return {key: value for key, value in confs.items() if value}


def _session_confs(settings: Settings) -> dict[str, str]:
    """What a running session can be given: by us at the start, and to sessions of a JVM that was there before."""
    confs = {**_DELTA_CONFS, "spark.sql.session.timeZone": settings.time_zone}
    if settings.spark_master is None and settings.spark_remote is None:
        confs |= {**_LOCAL_CONFS, "spark.sql.shuffle.partitions": str(_cores())}
    return confs


def _configure(spark: SparkSession, settings: Settings) -> None:
    for key, value in _session_confs(settings).items():
        spark.conf.set(key, value)
    _set_modifiable(spark, settings.spark_conf)


def _set_modifiable(spark: SparkSession, confs: Mapping[str, str]) -> None:
    for key, value in confs.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)


def _connect(url: str) -> SparkSession:
    server = urlsplit(url)
    try:
        # Spark's client would go on trying for ten minutes.
        socket.create_connection((server.hostname or "", server.port or 15002), timeout=30).close()
        spark = SparkSession.builder.remote(url).create()
        _remotes[spark] = url
        try:
            spark.range(1).schema  # noqa: B018  the first call that reaches the server
        except PySparkException:
            spark.client.close()
            raise
        return spark
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING, f"Spark Connect needs {e.name or e}", hint="pip install 'millstream[connect]'"
        ) from e
    except (PySparkException, OSError) as e:
        details = re.search(r'details = "([^"]*)"', str(e))
        why = details[1] if details else str(e).splitlines()[0]
        raise MillstreamError(Code.SESSION_FAILED, f"the Spark Connect server {url} cannot be used: {why}") from e


@atexit.register
def _stop_remotes() -> None:
    """A Spark Connect session that is collected while the interpreter ends waits for ever for its channel."""
    for spark in list(_remotes):
        spark.stop()


def _require_delta(spark: SparkSession) -> None:
    extensions = _conf(spark, "spark.sql.extensions")
    catalog = _conf(spark, "spark.sql.catalog.spark_catalog")
    if _EXTENSION not in extensions or "delta" not in catalog.lower() or not _has_default_schema(spark):
        raise MillstreamError(
            Code.SESSION_WITHOUT_DELTA,
            "the Spark session is not configured for Delta tables",
            hint=f"start it with spark.sql.extensions={_EXTENSION}, spark.sql.catalog.spark_catalog={_CATALOG} "
            f"and the jars of {jars.COORDINATES}, or stop it and let millstream start its own",
        )


def _has_default_schema(spark: SparkSession) -> bool:
    """False where the catalog's class is missing: a JVM that was started without Delta's jars never gets them."""
    try:
        return spark.catalog.databaseExists(DEFAULT_SCHEMA)
    except (PySparkException, Py4JError):
        return False


def _conf(spark: SparkSession, key: str) -> str:
    """A setting or its default; empty where Spark does not know the key."""
    try:
        return str(spark.conf.get(key) or "")
    except PySparkException:
        return ""


def _create_schema(spark: SparkSession, schema: str, directory: Path) -> None:
    text = _spark_path(directory).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)} LOCATION '{text}'")


def _spark_path(directory: Path) -> str:
    return f"file:{directory}"  # not percent-encoded: Spark takes the text as it stands


def _is_at(spark: SparkSession, schema: str, directory: Path) -> bool:
    location = spark.catalog.getDatabase(schema).locationUri
    if not location.startswith(("file:", "/")):
        return False
    path = "/" + location.removeprefix("file:").lstrip("/")
    return directory in (Path(path).resolve(), Path(unquote(path)).resolve())  # some catalogs encode, some do not


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _driver_memory() -> str:
    """4 GB, or half of a smaller machine."""
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return f"{max(1024, min(4096, machine_mb // 2))}m"
