"""Reading a table's contents around Delta's connector: Spark scans the files the log lists.

Delta rebuilds its snapshot with a Spark job after every commit; here the list of files is at hand already. Dead rows
are taken out by an anti-join with their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage import deletion_vector
from millstream.engine.storage.actions import DataFile
from millstream.engine.storage.location import file_in_table
from millstream.engine.storage.schema import narrowed, spark_schema
from millstream.engine.storage.table_log import TableState

MAX_DEAD_ROWS = 200_000
"""Beyond so many dead rows Delta's own reader is faster."""

_GLOB = frozenset("*?[]{}\\")
POSITION_SCHEMA = StructType([StructField(naming.FILE, StringType()), StructField(naming.ROW, LongType())])


def scan_obstacle(root: Path, state: TableState) -> str | None:
    """Why the files should not be scanned directly, beyond what `reading_obstacle` says."""
    if _GLOB & set(str(root)):
        return "wildcards in the path"
    if any(file_in_table(root, path) is None for path in state.files):
        return "files outside the table"
    dead = sum(f.num_dead for f in state.files.values())
    return f"{dead} dead rows" if dead > MAX_DEAD_ROWS else None


def scan(
    spark: SparkSession, root: Path, state: TableState, columns: Sequence[str] | None, *, located: bool
) -> DataFrame:
    """The live rows of `state`, with `naming.FILE` and `naming.ROW` if `located`."""
    schema = narrowed(spark_schema(state.metadata.schema_string), columns)
    clean = [f for f in state.files.values() if not f.deletion_vector]
    marked = [f for f in state.files.values() if f.deletion_vector]
    frames = [_files(spark, root, files, schema) for files in (clean, marked) if files]
    if marked:
        dead = F.broadcast(spark.createDataFrame(_dead_positions(root, marked), schema=POSITION_SCHEMA))
        frames[-1] = frames[-1].join(dead, [naming.FILE, naming.ROW], "left_anti")
    names = [naming.quote(f.name) for f in schema.fields]
    if located:
        names += [naming.FILE, naming.ROW]
    if not frames:
        nothing = StructType([*schema.fields, *POSITION_SCHEMA.fields])
        return spark.createDataFrame([], nothing).select(*names)
    result = frames[0].select(*names)
    for frame in frames[1:]:
        result = result.unionAll(frame.select(*names))
    return result


def _files(spark: SparkSession, root: Path, files: Sequence[DataFile], schema: StructType) -> DataFrame:
    nullable = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema.fields])
    frame = spark.read.schema(nullable).parquet(*(str(file_in_table(root, f.path)) for f in files))
    return frame.select("*", *position_columns(depth=1))


def position_columns(depth: int) -> tuple[Column, Column]:
    """File (as the log spells it, `depth` names deep) and row of each row of a file scan."""
    file = F.substring_index(F.col("_metadata.file_path"), "/", -depth)
    return file.alias(naming.FILE), F.col("_metadata.row_index").alias(naming.ROW)


def _dead_positions(root: Path, marked: Sequence[DataFile]) -> pa.Table:
    parts = [deletion_vector.to_numpy(deletion_vector.read(root, f.deletion_vector)) for f in marked]
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(marked), dtype=np.int32), [len(p) for p in parts])),
        pa.array([f.path for f in marked]),
    )
    return pa.table({naming.FILE: names.cast(pa.string()), naming.ROW: pa.array(np.concatenate(parts))})
