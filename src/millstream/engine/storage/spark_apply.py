"""A change set applied by one Spark MERGE, by value instead of position.

A table with a key: each key is deleted, updated or inserted. A bag of rows: a row that loses some of its copies loses
all of them, and those that stay are inserted again; the net effect is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage import spark_way
from millstream.engine.storage.model import ChangeSet, Txn

_OPERATION = "__ms_op"
_COPIES = "__ms_copies"
_DELETE, _UPSERT, _INSERT = "D", "U", "I"


def apply(
    spark: SparkSession,
    path: str,
    schema: StructType,
    contents: DataFrame,
    change: ChangeSet,
    txn: Txn,
    metadata: Mapping[str, object],
) -> None:
    """Apply `change` to the table whose rows are `contents` (with their positions)."""
    columns = [f.name for f in schema.fields]
    located = StructType([*schema.fields, StructField(naming.FILE, StringType()), StructField(naming.ROW, LongType())])
    removed = _frame(spark, change.removed, located)
    added = _frame(spark, change.added, schema).select(*map(naming.quote, columns))
    if any(_holds_map(f.dataType) for f in schema.fields):
        # Spark compares no maps: write the table anew, chosen by position.
        kept = contents.join(removed.select(naming.FILE, naming.ROW), [naming.FILE, naming.ROW], "left_anti")
        whole = kept.select(*map(naming.quote, columns)).unionAll(added)
        spark_way.write(spark, path, whole, schema, "overwrite", txn, metadata)
        return
    if change.key_columns:
        source, on = _keyed_source(removed, added, columns, change.key_columns), list(change.key_columns)
    else:
        source, on = _bag_source(contents, removed, added, columns), columns
    spark_way.run_as_transaction(
        spark, {"source": source}, txn, metadata, path, lambda views: _merge(path, views["source"], columns, on)
    )


def _frame(spark: SparkSession, rows: object, schema: StructType) -> DataFrame:
    if rows is None:
        return spark.createDataFrame([], schema)
    return spark_way.as_frame(spark, rows, schema)


def _keyed_source(removed: DataFrame, added: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    old, new = removed.alias("old"), added.alias("new")
    same_key = F.expr(" AND ".join(f"old.{naming.quote(k)} <=> new.{naming.quote(k)}" for k in key))
    gone = old.join(new, same_key, "left_anti").select(*(F.col(f"old.{naming.quote(c)}") for c in columns))
    return gone.withColumn(_OPERATION, F.lit(_DELETE)).unionAll(added.withColumn(_OPERATION, F.lit(_UPSERT)))


def _bag_source(contents: DataFrame, removed: DataFrame, added: DataFrame, columns: Sequence[str]) -> DataFrame:
    names = [naming.quote(c) for c in columns]
    gone = removed.groupBy(*names).agg(F.count("*").alias("gone"))
    t, g = contents.alias("t"), gone.alias("g")
    same_row = F.expr(" AND ".join(f"t.{n} <=> g.{n}" for n in names))
    present = t.join(F.broadcast(g), same_row, "left_semi").groupBy(*names).agg(F.count("*").alias("present"))
    p = present.alias("p")
    same_row = F.expr(" AND ".join(f"p.{n} <=> g.{n}" for n in names))
    staying = p.join(g, same_row).select(*(f"p.{n}" for n in names), F.expr("p.present - g.gone").alias(_COPIES))
    copies = F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(_COPIES)))
    again = staying.where(F.col(_COPIES) > 0).select(*names, copies.alias(_COPIES)).select(*names)
    return (
        gone.select(*names, F.lit(_DELETE).alias(_OPERATION))
        .unionAll(again.select(*names, F.lit(_INSERT).alias(_OPERATION)))
        .unionAll(added.select(*names, F.lit(_INSERT).alias(_OPERATION)))
    )


def _merge(path: str, source: str, columns: Sequence[str], on: Sequence[str]) -> str:
    names = [naming.quote(c) for c in columns]
    same = " AND ".join(f"t.{naming.quote(c)} <=> s.{naming.quote(c)}" for c in on)
    rest = [n for n in names if n not in {naming.quote(c) for c in on}]
    lines = [
        f"MERGE INTO {spark_way.table(path)} t USING {source} s",
        f"ON {same} AND s.{_OPERATION} <> '{_INSERT}'",
        f"WHEN MATCHED AND s.{_OPERATION} = '{_DELETE}' THEN DELETE",
    ]
    if rest:
        # Without the guard, rows that stay the same would enter the change feed as updates.
        differs = "NOT (" + " AND ".join(f"t.{n} <=> s.{n}" for n in rest) + ")"
        assignments = ", ".join(f"t.{n} = s.{n}" for n in rest)
        lines.append(f"WHEN MATCHED AND {differs} THEN UPDATE SET {assignments}")
    lines.append(
        f"WHEN NOT MATCHED AND s.{_OPERATION} <> '{_DELETE}' "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{n}' for n in names)})"
    )
    return "\n".join(lines)


def _holds_map(data_type: DataType) -> bool:
    if isinstance(data_type, MapType):
        return True
    if isinstance(data_type, ArrayType):
        return _holds_map(data_type.elementType)
    return isinstance(data_type, StructType) and any(_holds_map(f.dataType) for f in data_type.fields)
