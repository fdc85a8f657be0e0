"""The Spark session: embedded by default; by configuration that of a cluster, a Spark Connect server or the caller.

`session_settings` holds its settings, `lake_schemas` the names of a lake's tables in it.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from millstream.engine import jars
from millstream.engine.jvm_process import lost_jvm
from millstream.engine.lake_schemas import SCHEMA_CONF, spark_schema, use_lake
from millstream.engine.session_settings import (
    CATALOG,
    DELTA_CONFS,
    EXTENSION,
    LOCAL_CONFS,
    LOG_ENVIRONMENT,
    SEMANTIC_CONFS,
    session_confs,
    start_confs,
)
from millstream.errors import Code, MillstreamError
from millstream.naming import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from millstream.settings import Settings

_lock = threading.RLock()
_holders: weakref.WeakKeyDictionary[SparkSession, Path] = weakref.WeakKeyDictionary()
_remotes: weakref.WeakKeyDictionary[SparkSession, str] = weakref.WeakKeyDictionary()


def create_session(settings: Settings, warehouse: Path) -> SparkSession:
    """Open a session whose tables are stored under `warehouse`; every call returns a new session.

    The caller closes it with `close_session`.

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

    Settings that only affect speed on one machine (shuffle partitions, file listing) stay as they are: the session's
    owner knows the cluster.

    Raises:
        MillstreamError: SESSION_WITHOUT_DELTA.
    """
    _require_delta(spark)
    silence_refusals()
    for key, value in DELTA_CONFS.items():
        spark.conf.set(key, value)
    if settings is not None:
        spark.conf.set("spark.sql.session.timeZone", settings.time_zone)
        _set_modifiable(spark, settings.spark_conf)
    return spark


def new_worker_session(spark: SparkSession) -> SparkSession:
    """A session over the same tables that starts with the same settings and may then change them for itself.

    If `spark` is the caller's own Spark Connect session and its address is unknown (it is not in $SPARK_REMOTE either),
    it is returned itself: then all workers share one session.
    """
    if _is_classic(spark):
        worker = spark.newSession()
    else:  # cloneSession would do this on the server, but in Spark 4.2 a clone keeps the process from ending
        url = _remotes.get(spark) or os.environ.get("SPARK_REMOTE")
        if url is None:
            return spark
        worker = _connect(url)
    for key in (*DELTA_CONFS, *LOCAL_CONFS, *SEMANTIC_CONFS, "spark.sql.shuffle.partitions"):
        worker.conf.set(key, _conf(spark, key))
    for key, value in spark.conf.getAll.items():
        if key.startswith(SCHEMA_CONF):
            worker.conf.set(key, value)
    worker.conf.set("spark.sql.debug.maxToStringFields", "1000000")  # plans are compared as complete texts
    worker.catalog.setCurrentDatabase(spark_schema(worker, DEFAULT_SCHEMA))
    return worker


def close_session(spark: SparkSession) -> None:
    """Close a session of `create_session`; closing the last one stops Spark. Other sessions are not touched."""
    with _lock:
        if _holders.pop(spark, None) is None:
            return
        if _is_classic(spark) and lost_jvm() is not None:
            return  # there is nothing left to stop
        if not _is_classic(spark) or (not _holders and _is_ours(spark.sparkContext)):
            spark.stop()


def read_semantics(spark: SparkSession) -> dict[str, str]:
    """The values, in a session, of the settings that a query's meaning depends on."""
    return {key: _conf(spark, key) for key in SEMANTIC_CONFS}


def apply_semantics(spark: SparkSession, semantics: Mapping[str, str]) -> None:
    """Set what `read_semantics` returned, e.g. in the session that refreshes a stream table."""
    for key in SEMANTIC_CONFS:
        if key in semantics:
            spark.conf.set(key, semantics[key])


def _classic(settings: Settings, warehouse: Path) -> SparkSession:
    active = SparkContext._active_spark_context  # every public call would create one
    if active is not None and _is_ours(active) and not _holders:
        SparkSession.builder.getOrCreate().stop()  # earlier lakes are closed; 0.3 s to get rid of their schemas
        active = None
    if active is not None:
        return SparkSession.builder.getOrCreate().newSession()
    jars.check_java()
    conf = SparkConf(loadDefaults=False)
    for key, value in start_confs(settings, warehouse).items():
        conf.set(key, value)
    return _start(conf).newSession()


def _is_classic(spark: SparkSession) -> bool:
    return hasattr(spark, "newSession")  # Spark Connect has none


def _is_ours(context: SparkContext) -> bool:
    return context.getConf().get("spark.millstream.owned", "") == "true"


def _start(conf: SparkConf) -> SparkSession:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs each broken socket at exit
    silence_refusals()
    log = _log_file()
    try:
        if SparkContext._gateway is None:  # a JVM survives its SparkContext
            # The JVM prints its own warnings (incubator modules, native access) before any log setting applies.
            # In a session of its own: a signal to our process group, e.g. by systemd, must not end it before we have
            # finished. It ends with this process even if that is killed, because its standard input is closed then.
            files = {"stderr": log, "stdout": log, "start_new_session": True}
            gateway = launch_gateway(conf, files)  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError) as e:
        raise _failed(e, log) from e
    finally:
        log.close()


def silence_refusals() -> None:
    """Keep PySpark from writing each refused query to stderr: the caller gets the error itself."""
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


def _configure(spark: SparkSession, settings: Settings) -> None:
    for key, value in session_confs(settings).items():
        spark.conf.set(key, value)
    _set_modifiable(spark, settings.spark_conf)


def _set_modifiable(spark: SparkSession, confs: Mapping[str, str]) -> None:
    for key, value in confs.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)


def _connect(url: str) -> SparkSession:
    server = urlsplit(url)
    try:
        # Spark's client would keep trying for ten minutes.
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
    """A Spark Connect session that is garbage-collected at exit would wait for its channel forever."""
    for spark in list(_remotes):
        spark.stop()


def _require_delta(spark: SparkSession) -> None:
    extensions = _conf(spark, "spark.sql.extensions")
    catalog = _conf(spark, "spark.sql.catalog.spark_catalog")
    if EXTENSION not in extensions or "delta" not in catalog.lower() or not _has_default_schema(spark):
        raise MillstreamError(
            Code.SESSION_WITHOUT_DELTA,
            "the Spark session is not configured for Delta tables",
            hint=f"start it with spark.sql.extensions={EXTENSION}, spark.sql.catalog.spark_catalog={CATALOG} "
            f"and the jars of {jars.COORDINATES}, or stop it so that millstream starts its own",
        )


def _has_default_schema(spark: SparkSession) -> bool:
    """False if the catalog's class is missing: a JVM that was started without Delta's jars cannot load them later."""
    try:
        return spark.catalog.databaseExists(DEFAULT_SCHEMA)
    except (PySparkException, Py4JError):
        return False


def _conf(spark: SparkSession, key: str) -> str:
    """A setting or its default; empty if Spark does not know the key."""
    try:
        return str(spark.conf.get(key) or "")
    except PySparkException:
        return ""
