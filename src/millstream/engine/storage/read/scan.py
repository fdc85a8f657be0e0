"""Reading a table's contents without Delta's connector: Spark scans the files that the log lists.

Delta rebuilds its snapshot with a Spark job after every commit; here the list of files is already known. A bitmap of
the marked files' rows filters out dead rows, which costs the same for one dead row as for a million: an anti join with
their positions took twice as long for 100,000 of 10 M rows, and ten times as long for a million.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.files.schema import narrowed, spark_schema
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.table_log import TableState

POSITION_SCHEMA = StructType([StructField(naming.FILE, StringType()), StructField(naming.ROW, LongType())])

_MAX_MARKED_FILES = 256
_MAX_MARKED_ROWS = 400_000_000  # a bitmap of 50 MB
_PLAIN_NAME = re.compile(r"[\w.=-]+\Z", re.ASCII)
_GLOB = frozenset("*?[]{}\\")
_WORD_BITS = 64


def scan_obstacle(root: Path, state: TableState) -> str | None:
    """Why the files should not be scanned directly, in addition to `reading_obstacle`."""
    if _GLOB & set(str(root)):
        return "wildcards in the path"
    if not all(_PLAIN_NAME.match(path) for path in state.files):
        return "files outside the table's directory"
    marked = [f for f in state.files.values() if f.deletion_vector]
    if any(f.num_records is None for f in marked):
        return "files with dead rows but without statistics"
    if len(marked) > _MAX_MARKED_FILES or sum(f.num_records or 0 for f in marked) > _MAX_MARKED_ROWS:
        return "too many files with dead rows"
    return None


def scan(
    spark: SparkSession, root: Path, state: TableState, columns: Sequence[str] | None, *, located: bool
) -> DataFrame:
    """The live rows of `state`, with `naming.FILE` and `naming.ROW` if `located`."""
    schema = narrowed(spark_schema(state.metadata.schema_string), columns)
    clean = [f for f in state.files.values() if not f.deletion_vector]
    marked = [f for f in state.files.values() if f.deletion_vector]
    marked.sort(key=lambda f: -(f.num_records or 0))  # the filter searches for a row's file in this order
    names: list[str | Column] = [naming.quote(f.name) for f in schema.fields]
    if located:
        names += [F.col("_metadata.file_name").alias(naming.FILE), F.col("_metadata.row_index").alias(naming.ROW)]
    frames = []
    if clean:
        frames.append(_files(spark, root, clean, schema).select(*names))
    if marked:
        frames.append(_files(spark, root, marked, schema).where(_is_live(spark, root, marked)).select(*names))
    if not frames:
        return spark.createDataFrame([], StructType([*schema.fields, *(POSITION_SCHEMA.fields if located else ())]))
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


def _files(spark: SparkSession, root: Path, files: Sequence[DataFile], schema: StructType) -> DataFrame:
    nullable = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema.fields])
    return spark.read.schema(nullable).parquet(*(str(root / f.path) for f in files))


def _is_live(spark: SparkSession, root: Path, marked: Sequence[DataFile]) -> Column:
    """A condition on rows of the marked files: their bit in the bitmap of dead rows is not set."""
    words: list[npt.NDArray[np.int64]] = []
    first_word, cases = 0, []
    for file in marked:
        cases.append(f"WHEN '{file.path}' THEN {first_word}L")
        words.append(_dead_bits(root, file))
        first_word += len(words[-1])
    bitmap = pa.ListArray.from_arrays(pa.array([0, first_word], pa.int32()), pa.array(np.concatenate(words)))
    one_row = spark.createDataFrame(
        pa.table({"words": bitmap}), schema=StructType([StructField("words", ArrayType(LongType()))])
    )
    row = F.col("_metadata.row_index")
    start = F.expr(f"CASE _metadata.file_name {' '.join(cases)} END")
    word = F.get(one_row.scalar(), (start + F.shiftright(row, 6)).cast("int"))
    return F.coalesce(F.getbit(word, (row % _WORD_BITS).cast("int")), F.lit(0)) == 0


def _dead_bits(root: Path, file: DataFile) -> npt.NDArray[np.int64]:
    size = -(-(file.num_records or 0) // _WORD_BITS) * _WORD_BITS
    bits = np.zeros(size, dtype=np.uint8)
    bits[deletion_vector.to_numpy(deletion_vector.read(root, file.deletion_vector))] = 1
    return np.packbits(bits, bitorder="little").view("<i8")
