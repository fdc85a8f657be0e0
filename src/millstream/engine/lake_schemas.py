"""The schemas of lakes in Spark: which schema of the session stands for which schema of a lake.

One process has one JVM, and a JVM has one warehouse directory and one set of schemas. The first lake in a JVM uses
Spark's schema `default` as its default schema. A lake opened while another is still open, and a lake in the caller's
own session, gets a separate Spark schema (`use_lake`); one-part names resolve to it, since it is the session's current
schema. `spark_name` returns the right name in every case.
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

SCHEMA_CONF = "millstream.lake.schema"  # the Spark schema that stands for the lake's default schema
_PLAIN = re.compile(r"[a-z0-9_]+")  # lower case only, because Spark ignores the case of names


def use_lake(spark: SparkSession, warehouse: Path) -> str:
    """Make `warehouse` the place of unqualified tables; returns the Spark schema for the lake's schema `default`."""
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
    """Create a schema of a lake in the session, in the directory that Spark would use; returns its name in Spark.

    That is the same name, unless another lake in this JVM has a schema of that name, or it belongs to an attached
    database.
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
    """The name in Spark of a schema of a lake or of an attached database."""
    if schema == DEFAULT_SCHEMA:
        return str(spark.conf.get(SCHEMA_CONF, DEFAULT_SCHEMA))
    return str(spark.conf.get(f"{SCHEMA_CONF}.{schema}", _plain(schema) if "." in schema else schema))


def spark_name(spark: SparkSession, name: TableName) -> str:
    """A table's full name for a SQL text in this session."""
    table = name.name if name.database is None else _plain(name.name)
    return f"{quote(spark_schema(spark, name.schema))}.{quote(table)}"


def _plain(name: str) -> str:
    """A name that Spark's catalog accepts: a generated one if the name has a dot or other refused characters.

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
    """A directory as it is passed to Spark."""
    return f"file:{directory}"  # not percent-encoded: Spark uses the text as it is


def _is_at(spark: SparkSession, schema: str, directory: Path) -> bool:
    location = spark.catalog.getDatabase(schema).locationUri
    if not location.startswith(("file:", "/")):
        return False
    path = "/" + location.removeprefix("file:").lstrip("/")
    return directory in (Path(path).resolve(), Path(unquote(path)).resolve())  # some catalogs percent-encode it
