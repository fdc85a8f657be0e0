"""Reads tables of attached databases for `ms.sql` and `ms.table`, whether or not a stream table uses them.

A mirror that has all columns of its table is read as of the last refresh. Any other table, and every view, is read
from the database as it is now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.catalog.attached import AttachedDatabase
from millstream.catalog.models import ObjectKind
from millstream.engine.analyzer import explained
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.errors import Code, MillstreamError
from millstream.lake import Lake
from millstream.lake.attached_names import spark_columns
from millstream.naming import RESERVED_PREFIX, TableName, in_double_quotes, quote, split_name
from millstream.notices import NoticeWarning, warn
from millstream.postgres.address import Address
from millstream.sources.landing import land
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small, spark_frame
from millstream.sources.postgres.load.spark_reader import coded_error
from millstream.sources.postgres.values.types import mirror_columns, mirror_schema
from millstream.sql.sources import Source
from millstream.sql.statements import Other
from millstream.sql.text.table_exchange import TableReference, exchange_tables_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def with_readable_tables(statement: Other, lake: Lake, spark: SparkSession, trusted: Sequence[str]) -> str:
    """A statement's text, with the attached tables it reads replaced by tables that Spark knows.

    Args:
        trusted: the setting `trusted_owners`.

    Raises:
        MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE; UNSUPPORTED_SQL for a view over them.
    """
    said = statement.text.lower()
    if not any(database.name in said for database in lake.catalog.databases()):
        return statement.text

    def replacement(reference: TableReference) -> str | None:
        if lake.attached.database(reference.parts) is None:
            return None
        if statement.verb == "CREATE" and statement.kind == "VIEW" and not statement.temporary:
            raise MillstreamError(
                Code.UNSUPPORTED_SQL,
                f"a view of the lake cannot read {'.'.join(reference.parts)}, which is in an attached database",
                sql=statement.text,
                hint="make it a stream table, or a view of that database",
            )
        return readable(lake, spark, reference.parts, trusted)

    return exchange_tables_read(statement.text, replacement)


def table_frame(lake: Lake, spark: SparkSession, name: str, trusted: Sequence[str]) -> DataFrame:
    """A stream table, table or view as a DataFrame, also one of an attached database.

    Args:
        trusted: the setting `trusted_owners`.

    Raises:
        MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE.
    """
    lake.sync()
    try:
        parts = split_name(name)
        if lake.attached.database(parts) is not None:
            return spark.table(readable(lake, spark, parts, trusted, in_double_quotes(name)))
        return spark.table(lake.spark_name(TableName.parse(name)))
    except SPARK_ERRORS as e:
        raise explained(e, name) from e


def readable(
    lake: Lake, spark: SparkSession, parts: Sequence[str], trusted: Sequence[str], exact: Sequence[bool] = ()
) -> str:
    """The name under which Spark can read a table or view of an attached database.

    Args:
        trusted: the setting `trusted_owners`.
        exact: which parts must match the database's spelling; the others may differ in case.

    Raises:
        MillstreamError: UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE.
    """
    name, database = lake.resolve(parts), lake.attached.database(parts)
    assert name is not None
    assert database is not None
    here = zip(reversed(parts), reversed(name.parts), reversed(exact), strict=False)
    if any(written != found and must_match for written, found, must_match in here):
        name = lake.resolve(parts, exact=True)
        assert name is not None
    mirror = lake.catalog.lake_object(ObjectKind.TABLE, name)
    try:
        is_view = lake.attached.relation(name.parts, exact=True).view_text is not None
    except MillstreamError as error:
        if error.code is not Code.DATABASE_UNREACHABLE or mirror is None:
            raise
        return lake.spark_name(name)
    found = lake.find(name.parts, exact=True) if not is_view else None
    if isinstance(found, Source):
        if TableName.parse(found.id) != name:  # a stream table is served there
            return lake.spark_name(TableName.parse(found.id))
        wanted = {c.name.lower() for c in found.columns}
        if mirror is not None and wanted <= {c.name.lower() for c in lake.table_columns(mirror)}:
            return lake.spark_name(name)
    return _temporary(_read_now(lake, spark, database, name, trusted), name)


def _read_now(
    lake: Lake, spark: SparkSession, database: AttachedDatabase, name: TableName, trusted: Sequence[str]
) -> DataFrame:
    """The rows of a table or view in one snapshot of the database; if there are many, they are copied into the lake."""
    relation = lake.attached.relation(name.parts, exact=True)
    ranges = lake.attached.ranges(name)
    _, unreadable = spark_columns(relation, ranges)
    for column, why in unreadable:
        warn(f"{name} is read without its column {column}: {why}", NoticeWarning)
    left_out = {column for column, _ in unreadable}
    columns = mirror_columns(relation, [c.name for c in relation.columns if c.name not in left_out], ranges)
    directory = lake.root / "copies" / hashlib.sha256(str(name).encode()).hexdigest()[:16]
    # It is locked only when it is read: LOCK TABLE needs more than the right to read some columns.
    with ExportedSnapshot(Address(database.address), trusted=trusted) as snapshot:
        rows = read_small(snapshot, relation, columns)
        if rows is not None:
            return spark.createDataFrame(rows, schema=mirror_schema(columns))
        try:
            land(spark_frame(spark, snapshot, relation, columns), directory)
        except SPARK_ERRORS as e:
            raise coded_error(e) or e from e
    return spark.read.format("delta").load(str(directory))


def _temporary(frame: DataFrame, name: TableName) -> str:
    view = f"{RESERVED_PREFIX}copy_{hashlib.sha256(str(name).encode()).hexdigest()[:16]}"
    frame.createOrReplaceTempView(view)
    return quote(view)
