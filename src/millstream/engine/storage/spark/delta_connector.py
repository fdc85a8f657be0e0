"""The Spark path, by Delta's reader and writer: for every table that Delta reads, in every store that Spark reaches."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from millstream import naming
from millstream.engine.session import new_worker_session
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage.files.data_file import CHANGE_TYPE
from millstream.engine.storage.files.exact_cast import exactly
from millstream.engine.storage.files.schema import arrow_schema
from millstream.engine.storage.model import INSERT, POSTIMAGE, Rows, Txn
from millstream.errors import Code, MillstreamError

_TXN_CONF = "spark.databricks.delta.write.txn{}"
_USER_METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"


def table(path: str) -> str:
    """A table by its path, for a SQL text."""
    return f"delta.{naming.quote(path)}"


def read(
    spark: SparkSession, path: str, version: int, columns: Sequence[str] | None, partitions: int, *, located: bool
) -> DataFrame:
    """The contents at a version, through Delta's reader."""
    frame = spark.read.format("delta").option("versionAsOf", version).load(path)
    names = [naming.quote(c) for c in (frame.columns if columns is None else columns)]
    if not located:
        return frame.select(*names)
    # As in the log: below the table's directory there is one more directory for each partition column.
    file = F.substring_index(F.col("_metadata.file_path"), "/", -1 - partitions)
    return frame.select(*names, file.alias(naming.FILE), F.col("_metadata.row_index").alias(naming.ROW))


def changes(spark: SparkSession, path: str, after: int, upto: int, columns: Sequence[str]) -> DataFrame:
    """The delta between two versions as a Z-set, through Delta's change feed."""
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", after + 1)
        .option("endingVersion", upto)
        .load(path)
    )
    weight = F.when(F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE), F.lit(1)).otherwise(F.lit(-1)).cast("bigint")
    return feed.select(*map(naming.quote, columns), weight.alias(naming.WEIGHT))


def create(spark: SparkSession, path: str, schema: StructType, properties: Mapping[str, str]) -> None:
    """Create an empty table with these properties."""
    nullable = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema.fields])
    spark.createDataFrame([], nullable).write.format("delta").options(**properties).save(path)


def write(
    spark: SparkSession,
    path: str,
    rows: Rows,
    schema: StructType,
    mode: str,
    txn: Txn,
    metadata: Mapping[str, object],
    *,
    is_change: bool = True,
) -> None:
    """Append to the table or replace its contents, in one commit; with `is_change` false, it records no row change."""
    frame = as_frame(spark, rows, schema).select(*(naming.quote(f.name) for f in schema.fields))
    txn.permit()
    with reporting_conflicts(path):
        (
            frame.write.format("delta")
            .mode(mode)
            .option("txnAppId", txn.app_id)
            .option("txnVersion", txn.version)
            .option("userMetadata", json.dumps(metadata, separators=(",", ":"), sort_keys=True))
            .option("dataChange", str(is_change).lower())
            .save(path)
        )


def widen(spark: SparkSession, path: str, have: StructType, wanted: StructType) -> None:
    """Add the columns of `wanted` that the table lacks."""
    new = [f for f in wanted.fields if f.name not in have.names]
    if new:
        columns = ", ".join(f"{naming.quote(f.name)} {f.dataType.simpleString()}" for f in new)
        spark.sql(f"ALTER TABLE {table(path)} ADD COLUMNS ({columns})")


def as_frame(spark: SparkSession, rows: Rows, schema: StructType) -> DataFrame:
    """`rows` as a DataFrame of `schema`."""
    if isinstance(rows, DataFrame):
        return rows
    wanted = arrow_schema(schema)
    return spark.createDataFrame(exactly(rows.select(wanted.names), wanted), schema=schema)


def run_as_transaction(
    spark: SparkSession,
    frames: Mapping[str, DataFrame],
    txn: Txn,
    metadata: Mapping[str, object],
    path: str,
    statement: Callable[[Mapping[str, str]], str],
) -> None:
    """Run one DML statement with a transaction number.

    MERGE takes it from the session only, and threads share sessions: so the statement runs in a separate session, in
    which `frames` are visible as global views. `statement` receives the views' names.
    """
    session = new_worker_session(spark)
    session.conf.set(_TXN_CONF.format("AppId"), txn.app_id)
    session.conf.set(_TXN_CONF.format("Version"), str(txn.version))
    session.conf.set(_USER_METADATA_CONF, json.dumps(metadata, separators=(",", ":"), sort_keys=True))
    views = {name: f"__ms_{name}_{uuid.uuid4().hex}" for name in frames}
    try:
        for name, frame in frames.items():
            frame.createGlobalTempView(views[name])
        txn.permit()
        with reporting_conflicts(path):
            session.sql(statement({name: f"global_temp.{view}" for name, view in views.items()}))
    finally:
        for view in views.values():
            spark.catalog.dropGlobalTempView(view)


@contextmanager
def reporting_conflicts(path: str) -> Iterator[None]:
    """Turn Delta's errors about concurrent writers into `COMMIT_CONFLICT`."""
    try:
        yield
    except SPARK_ERRORS as e:
        text = str(e)
        if "DELTA_CONCURRENT" not in text and "io.delta.exceptions" not in text:
            raise
        raise MillstreamError(
            Code.COMMIT_CONFLICT,
            f"{path} was changed by another writer at the same time",
            hint="only refreshes may write a stream table's storage; refresh again",
        ) from e
