"""Applies a change set with one Spark MERGE, by value instead of position.

In a table with a key, each key is deleted, updated or inserted; without updates, a key that stays is deleted and
inserted again, in the same commit. In a bag of rows, a row that loses some of its copies loses all of them, and those
that stay are inserted again; the net change is the same. Rows are equal if their bits are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage.model import ChangeSet, Txn
from millstream.engine.storage.spark import delta_connector
from millstream.engine.storage.spark.row_identity import holds_floats, identical_sql, identities

_OPERATION = "__ms_op"
_COPIES = "__ms_copies"
_SAME = "__ms_same_"
_DELETE, _UPSERT, _INSERT = "D", "U", "I"


def apply(
    spark: SparkSession,
    path: str,
    schema: StructType,
    contents: DataFrame,
    change: ChangeSet,
    txn: Txn,
    metadata: Mapping[str, object],
    *,
    updates: bool = True,
) -> None:
    """Apply `change` to the table whose rows are `contents` (with their positions).

    Args:
        updates: whether a key that stays is updated; otherwise its row is deleted and another one inserted.
    """
    columns = [f.name for f in schema.fields]
    located = StructType([*schema.fields, StructField(naming.FILE, StringType()), StructField(naming.ROW, LongType())])
    removed = _frame(spark, change.removed, located)
    added = _frame(spark, change.added, schema).select(*map(naming.quote, columns))
    if any(_holds_map(f.dataType) for f in schema.fields):
        # Spark cannot compare maps: rewrite the table, with rows chosen by position.
        kept = contents.join(removed.select(naming.FILE, naming.ROW), [naming.FILE, naming.ROW], "left_anti")
        whole = kept.select(*map(naming.quote, columns)).unionAll(added)
        delta_connector.write(spark, path, whole, schema, "overwrite", txn, metadata)
        return
    if change.key_columns:
        source = _keyed_source(removed, added, columns, change.key_columns, updates=updates)
    else:
        source = _bag_source(contents, removed, added, schema)
    delta_connector.run_as_transaction(
        spark,
        {"source": source},
        txn,
        metadata,
        path,
        lambda views: _merge(path, views["source"], schema, change.key_columns),
    )


def _frame(spark: SparkSession, rows: object, schema: StructType) -> DataFrame:
    if rows is None:
        return spark.createDataFrame([], schema)
    return delta_connector.as_frame(spark, rows, schema)


def _keyed_source(
    removed: DataFrame, added: DataFrame, columns: Sequence[str], key: Sequence[str], *, updates: bool
) -> DataFrame:
    if not updates:
        gone = removed.select(*map(naming.quote, columns)).withColumn(_OPERATION, F.lit(_DELETE))
        return gone.unionAll(added.withColumn(_OPERATION, F.lit(_INSERT)))
    old, new = removed.alias("old"), added.alias("new")
    same_key = F.expr(" AND ".join(f"old.{naming.quote(k)} <=> new.{naming.quote(k)}" for k in key))
    gone = old.join(new, same_key, "left_anti").select(*(F.col(f"old.{naming.quote(c)}") for c in columns))
    return gone.withColumn(_OPERATION, F.lit(_DELETE)).unionAll(added.withColumn(_OPERATION, F.lit(_UPSERT)))


def _bag_source(contents: DataFrame, removed: DataFrame, added: DataFrame, schema: StructType) -> DataFrame:
    names, same = [naming.quote(f.name) for f in schema.fields], [f"{_SAME}{i}" for i in range(len(schema.fields))]
    values = [F.first(n).alias(f.name) for n, f in zip(names, schema.fields, strict=True)]
    identity = identities(schema.fields, _SAME)
    gone = removed.groupBy(*identity).agg(*values, F.count("*").alias("gone"))
    t, g = contents.select("*", *identity).alias("t"), gone.alias("g")
    same_row = F.expr(" AND ".join(f"t.{n} <=> g.{n}" for n in same))
    found = t.join(F.broadcast(g), same_row, "left_semi")
    present = found.groupBy(*same).agg(*values, F.count("*").alias("present"))
    p = present.alias("p")
    same_row = F.expr(" AND ".join(f"p.{n} <=> g.{n}" for n in same))
    staying = p.join(g, same_row).select(*(f"p.{n}" for n in names), F.expr("p.present - g.gone").alias(_COPIES))
    copies = F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(_COPIES)))
    again = staying.where(F.col(_COPIES) > 0).select(*names, copies.alias(_COPIES)).select(*names)
    return (
        gone.select(*names, F.lit(_DELETE).alias(_OPERATION))
        .unionAll(again.select(*names, F.lit(_INSERT).alias(_OPERATION)))
        .unionAll(added.select(*names, F.lit(_INSERT).alias(_OPERATION)))
    )


def _merge(path: str, source: str, schema: StructType, key: Sequence[str]) -> str:
    names = [naming.quote(f.name) for f in schema.fields]
    # By key, rows are matched with Spark's equality, which also formed the groups.
    same = " AND ".join(
        [f"t.{naming.quote(k)} <=> s.{naming.quote(k)}" for k in key]
        or [identical_sql(f, "t", "s") for f in schema.fields]
    )
    rest = [f for f in schema.fields if f.name not in key or holds_floats(f.dataType)] if key else []
    lines = [
        f"MERGE INTO {delta_connector.table(path)} t USING {source} s",
        f"ON {same} AND s.{_OPERATION} <> '{_INSERT}'",
        f"WHEN MATCHED AND s.{_OPERATION} = '{_DELETE}' THEN DELETE",
    ]
    if rest:
        # Without this condition, unchanged rows would enter the change feed as updates.
        differs = "NOT (" + " AND ".join(identical_sql(f, "t", "s") for f in rest) + ")"
        assignments = ", ".join(f"t.{naming.quote(f.name)} = s.{naming.quote(f.name)}" for f in rest)
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
