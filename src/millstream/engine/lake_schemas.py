"""The schemas of lakes in Spark: which schema of the session stands for which one of a lake.

One process has one JVM, and a JVM one warehouse directory and one set of schemas. A lake that finds the JVM free gets
it to itself: `default` is the lake's default schema. A lake opened while another is still open, and a lake in the
caller's own session, gets a Spark schema of its own (`use_lake`); one-part names resolve to it, since it is the
session's current schema. `spark_name` gives the right name in every case.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from millstream.naming import DEFAULT_SCHEMA, RESERVED_PREFIX, TableName, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA_CONF = "millstream.lake.schema"  # the Spark schema that stands for the lake's default one
_PLAIN = re.compile(r"[a-z0-9_]+")  # Spark's names differ by more than their case


def use_lake(spark: SparkSession, warehouse: Path) -> str:
    """Make `warehouse` the place of unqualified tables; gives the Spark schema that stands for the lake's `default`."""
    warehouse = warehouse.resolve()
    if _is_at(spark, DEFAULT_SCHEMA, warehouse):
        schema = DEFAULT_SCHEMA
    else:
        schema = "lake_" + hashlib.sha256(str(warehouse).encode()).hexdigest()[:12]
        _create_schema(spark, schema, warehouse)
    spark.conf.set(SCHEMA_CONF, schema)
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
    spark.conf.set(f"{SCHEMA_CONF}.{schema}", name)
    return name


def spark_schema(spark: SparkSession, schema: str) -> str:
    """The name in Spark of a lake's schema, or of one of an attached database."""
    if schema == DEFAULT_SCHEMA:
        return str(spark.conf.get(SCHEMA_CONF, DEFAULT_SCHEMA))
    return str(spark.conf.get(f"{SCHEMA_CONF}.{schema}", _plain(schema) if "." in schema else schema))


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


def _create_schema(spark: SparkSession, schema: str, directory: Path) -> None:
    text = spark_path(directory).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)} LOCATION '{text}'")


def spark_path(directory: Path) -> str:
    """A directory as Spark is given it."""
    return f"file:{directory}"  # not percent-encoded: Spark takes the text as it stands


def _is_at(spark: SparkSession, schema: str, directory: Path) -> bool:
    location = spark.catalog.getDatabase(schema).locationUri
    if not location.startswith(("file:", "/")):
        return False
    path = "/" + location.removeprefix("file:").lstrip("/")
    return directory in (Path(path).resolve(), Path(unquote(path)).resolve())  # some catalogs encode, some do not
