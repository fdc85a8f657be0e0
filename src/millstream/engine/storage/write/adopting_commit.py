"""Commits of rows that Spark computes and writes, while we write the log: appends, replacements, large changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millstream import naming
from millstream.engine.storage.files.data_file import CHANGE_TYPE, concatenated, read_rows
from millstream.engine.storage.files.exact_cast import exactly
from millstream.engine.storage.files.schema import UnsupportedTypeError, arrow_schema, arrow_schema_of, spark_schema
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import CHANGE, DELETE, INSERT, POSTIMAGE, PREIMAGE, Commit, Rows, Txn, Write
from millstream.engine.storage.write.adoption import (
    adopted_changes,
    adopted_data,
    incoming_directory,
    num_rows,
    written_by_spark,
)
from millstream.engine.storage.write.commit import changes_nothing, commit_info, commit_next, keeps_schema, txn_action
from millstream.engine.storage.write.direct_commit import change_metrics, commit_rows
from millstream.engine.storage.write.draft import Draft, dead_rows, stats_columns

_NEW, _OLD = (INSERT, POSTIMAGE), (DELETE, PREIMAGE)


def fits(frame: Rows | None, state: TableState) -> bool:
    """Whether a DataFrame has the table's columns in the table's types, so that its files can become the table's."""
    return not isinstance(frame, DataFrame) or has_types(frame, spark_schema(state.metadata.schema_string))


def has_types(frame: DataFrame, schema: StructType) -> bool:
    """Whether a DataFrame has the columns of `schema` in the same types, and we can write them."""
    try:
        have, wanted = arrow_schema(frame.schema), arrow_schema(schema)
    except UnsupportedTypeError:
        return False
    return all(f.name in have.names and have.field(f.name).type == f.type for f in wanted)


def commit_frame(
    log: TableLog,
    root: Path,
    state: TableState,
    frame: DataFrame,
    txn: Txn,
    metadata: Mapping[str, object],
    *,
    replace: bool,
) -> Commit:
    """Append the rows of `frame`, or replace the table's rows with them."""
    names = [naming.quote(f.name) for f in spark_schema(state.metadata.schema_string).fields]
    with written_by_spark(root, frame.select(*names)) as files:
        return _commit_files(log, root, state, files, txn, metadata, replace=replace)


def commit_written(
    log: TableLog, root: Path, state: TableState, write: Write, txn: Txn, metadata: Mapping[str, object]
) -> Commit:
    """Append the rows of files that `write` puts into a new directory on the table's file system."""
    with incoming_directory(root) as directory:
        directory.mkdir(parents=True)
        return _commit_files(log, root, state, write(directory), txn, metadata, replace=False)


def _commit_files(
    log: TableLog,
    root: Path,
    state: TableState,
    files: Sequence[Path],
    txn: Txn,
    metadata: Mapping[str, object],
    *,
    replace: bool,
) -> Commit:
    draft = Draft(root, state)
    with draft.kept_if_committed() as keep:
        rows = num_rows(files)
        for file in files:
            if action := adopted_data(root, file, stats_columns(state)):
                draft.add_new(action)
        if replace:
            for old in state.files.values():
                draft.remove(old)
        metrics = {"numFiles": draft.num_new_files, "numOutputRows": rows}
        info = commit_info("WRITE", state.version, metrics, metadata, mode="Overwrite" if replace else "Append")
        harmless = changes_nothing if replace else keeps_schema
        outcome = commit_next(log, root, state, txn, [info, txn_action(txn), *draft.actions], harmless)
        if isinstance(outcome, Commit):
            return outcome
        keep()
    return Commit(outcome, rows)


def commit_changes(
    spark: SparkSession,
    log: TableLog,
    root: Path,
    state: TableState,
    removed: Rows | None,
    added: Rows | None,
    txn: Txn,
    metadata: Mapping[str, object],
    max_driver_rows: int,
) -> Commit | None:
    """Apply a change whose rows Spark has not computed yet; `None` if there are none.

    Old and new rows are computed once, into change files that include the old rows' positions.
    """
    schema = spark_schema(state.metadata.schema_string)
    with written_by_spark(root, _feed(spark, schema, removed, added)) as files:
        rows = num_rows(files)
        if rows == 0:
            return None
        if rows <= max_driver_rows:
            old, new = _split(files, arrow_schema_of(state.metadata.schema_string))
            return commit_rows(log, root, state, old, new, txn, metadata)
        return _adopt_changes(spark, log, root, state, files, txn, metadata)


def _feed(spark: SparkSession, schema: StructType, removed: Rows | None, added: Rows | None) -> DataFrame:
    names = [F.col(naming.quote(f.name)) for f in schema.fields]
    parts: list[DataFrame] = []
    if removed is not None:
        old = _frame(spark, removed, schema, located=True)
        parts.append(old.select(*names, _label(old, DELETE), F.col(naming.FILE), F.col(naming.ROW)))
    if added is not None:
        new = _frame(spark, added, schema, located=False)
        no_file, no_row = F.lit(None).cast("string"), F.lit(None).cast("bigint")
        parts.append(new.select(*names, _label(new, INSERT), no_file.alias(naming.FILE), no_row.alias(naming.ROW)))
    return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])


def _label(frame: DataFrame, default: str) -> Column:
    label = F.coalesce(F.col(CHANGE), F.lit(default)) if CHANGE in frame.columns else F.lit(default)
    return label.alias(CHANGE_TYPE)


def _frame(spark: SparkSession, rows: Rows, schema: StructType, *, located: bool) -> DataFrame:
    if isinstance(rows, DataFrame):
        return rows
    fields = list(schema.fields)
    if located:
        fields += [StructField(naming.FILE, StringType()), StructField(naming.ROW, LongType())]
    if CHANGE in rows.column_names:
        fields.append(StructField(CHANGE, StringType()))
    wanted = arrow_schema(StructType(fields))
    return spark.createDataFrame(exactly(rows.select(wanted.names), wanted), schema=StructType(fields))


def _split(files: list[Path], schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    whole = schema.append(pa.field(CHANGE_TYPE, pa.string()))
    whole = whole.append(pa.field(naming.FILE, pa.string())).append(pa.field(naming.ROW, pa.int64()))
    rows = concatenated([read_rows(file, whole) for file in files], whole)
    is_new = pc.is_in(rows.column(CHANGE_TYPE), value_set=pa.array(_NEW))
    rows = rows.rename_columns([CHANGE if name == CHANGE_TYPE else name for name in rows.column_names])
    return rows.filter(pc.invert(is_new)), rows.filter(is_new).drop_columns([naming.FILE, naming.ROW])


def _adopt_changes(
    spark: SparkSession,
    log: TableLog,
    root: Path,
    state: TableState,
    files: list[Path],
    txn: Txn,
    metadata: Mapping[str, object],
) -> Commit:
    schema = spark_schema(state.metadata.schema_string)
    places = pa.concat_tables(pq.read_table(f, columns=[CHANGE_TYPE, naming.FILE, naming.ROW]) for f in files)
    counts = Counter({v["values"]: v["counts"] for v in pc.value_counts(places.column(CHANGE_TYPE)).to_pylist()})
    old = places.filter(pc.is_in(places.column(CHANGE_TYPE), value_set=pa.array(_OLD)))
    inserted, updated = counts[INSERT], counts[POSTIMAGE]
    new_rows = (
        spark.read.schema(StructType([*schema.fields, StructField(CHANGE_TYPE, StringType())]))
        .parquet(*map(str, files))
        .where(F.col(CHANGE_TYPE).isin(*_NEW))
        .drop(CHANGE_TYPE)
    )
    draft = Draft(root, state)
    with draft.kept_if_committed() as keep:
        draft.mark(dead_rows(root, state, old))
        if inserted + updated:
            with written_by_spark(root, new_rows) as data_files:
                for file in data_files:
                    if action := adopted_data(root, file, stats_columns(state)):
                        draft.add_new(action)
        for file in files:
            draft.add_changes(adopted_changes(root, file))
        metrics = change_metrics(inserted, updated, old.num_rows - updated, 0, draft.num_new_files)
        info = commit_info("MERGE", state.version, metrics, metadata)
        outcome = commit_next(log, root, state, txn, [info, txn_action(txn), *draft.actions], changes_nothing)
        if isinstance(outcome, Commit):
            return outcome
        keep()
    return Commit(outcome, inserted + updated, old.num_rows)
