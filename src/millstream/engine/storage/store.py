"""`DeltaStore`: the only access to Delta tables, with a direct path and a Spark path that give equal results.

The direct path reads the log, small changes and file lists, and commits small changes, without Spark; the Spark path
uses Delta's own reader and writer. Each call chooses by the kind of table and the amount of data.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StructField, StructType

from millstream import naming
from millstream.engine.storage.files.data_file import UnreadableFileError
from millstream.engine.storage.files.deletion_vector import UnreadableVectorError
from millstream.engine.storage.files.schema import (
    UnsupportedTypeError,
    arrow_schema,
    arrow_schema_of,
    columns_of,
    narrowed,
    spark_schema,
)
from millstream.engine.storage.location import local_root, normalised
from millstream.engine.storage.log.features import reading_obstacle
from millstream.engine.storage.log.log_files import LogFiles, LogGoneError, PosixLogFiles
from millstream.engine.storage.log.ranges import classify
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import (
    Changes,
    ChangeSet,
    Commit,
    RangeKind,
    RangeSummary,
    Rows,
    Snapshot,
    Txn,
    Write,
)
from millstream.engine.storage.read.change_feed import read_changes
from millstream.engine.storage.read.driver_scan import driver_scan, fits_driver
from millstream.engine.storage.read.lookup import MAX_FOUND, Wanted, has_exact_equality, is_searchable, look_up, rows_at
from millstream.engine.storage.read.pruning import comparable, pruned
from millstream.engine.storage.read.scan import POSITION_SCHEMA, scan, scan_obstacle
from millstream.engine.storage.spark import delta_connector
from millstream.engine.storage.spark.log_files import SparkLogFiles
from millstream.engine.storage.write.commit import writing
from millstream.engine.storage.write.create import check_names, create_directly, properties_of
from millstream.engine.storage.write.durable import sync_commits
from millstream.engine.storage.write.upkeep import TableUpkeep
from millstream.engine.storage.write.writer import TableWriter
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.settings import Settings


class DeltaStore:
    """Reads and writes Delta tables by path.

    Args:
        spark: the session in which reads are planned.
        settings: `direct_way`, `direct_max_rows` and `merge_strategy` decide between the two paths.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._lock = threading.Lock()
        self._logs: dict[str, TableLog] = {}

    # State and history

    def exists(self, path: str) -> bool:
        """Whether there is a Delta table."""
        return self._log(path).exists()

    def version(self, path: str) -> int:
        """The newest version; raises `SOURCE_MISSING` if the table no longer exists."""
        return self._log(path).version()

    def snapshot(self, path: str, version: int | None = None) -> Snapshot:
        """The table as its log describes it at `version`, by default the newest."""
        state = self._state(path, version)
        schema = _schema(state)
        return Snapshot(
            version=state.version,
            table_id=state.metadata.table_id,
            schema=columns_of(schema),
            partition_columns=state.metadata.partition_columns,
            num_files=len(state.files),
            num_rows=state.num_rows,
            size_bytes=state.size_bytes,
            writer_features=state.protocol.writer_features,
            configuration=state.metadata.configuration,
            spark_schema=schema,
        )

    def table_id(self, path: str, version: int) -> str:
        """The id that distinguishes the table from another one at the same path."""
        return self._state(path, version).metadata.table_id

    def commit_id(self, path: str, version: int) -> str | None:
        """The id that distinguishes a commit from any other of the same version, e.g. in a copy that has diverged.

        None if the log does not contain the version, or its writer gave it no id.
        """
        try:
            made = self._log(path).commits(version - 1, version)[0]
        except LogGoneError:
            return None
        return str(made.info["txnId"]) if "txnId" in made.info else None

    def commit_metadata(self, path: str, version: int) -> dict[str, object]:
        """What its writer stored with a commit; empty if the log does not contain the version any more."""
        try:
            made = self._log(path).commits(version - 1, version)[0]
            found = json.loads(str(made.info.get("userMetadata") or "{}"))
        except (LogGoneError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def classify(
        self,
        path: str,
        after: int,
        upto: int,
        columns: Sequence[str] | None = None,
        table_id: str | None = None,
    ) -> RangeSummary:
        """What happened in `(after, upto]`, from the log alone; see `ranges.classify` for the arguments."""
        return classify(self._log(path), after, upto, columns, table_id)

    def transaction_version(self, path: str, app_id: str) -> int | None:
        """The number of the application's last commit; `None` before the first."""
        return self._state(path, None).transactions.get(app_id)

    def committed(self, path: str, txn: Txn) -> tuple[int, dict[str, object]] | None:
        """The version and the metadata of a commit, if it was made and is still in the log."""
        if (self.transaction_version(path, txn.app_id) or -1) < txn.version:
            return None
        made = self._log(path).commit_of(txn.app_id, txn.version)
        if made is None:
            return None
        return made.version, json.loads(str(made.info.get("userMetadata") or "{}"))

    # Reading

    def read(self, path: str, version: int, columns: Sequence[str] | None = None) -> DataFrame:
        """The contents at `version`."""
        return self._read(path, version, columns, located=False)

    def read_located(self, path: str, version: int, columns: Sequence[str] | None = None) -> DataFrame:
        """The contents of a table of ours at `version`, with `naming.FILE` and `naming.ROW`, for a `ChangeSet`."""
        return self._read(path, version, columns, located=True)

    def look_up(self, path: str, version: int, wanted: Wanted, limit: int = MAX_FOUND) -> pa.Table | None:
        """The places of the rows of a table of ours that have one of the wanted values in each of some columns.

        `None` if there are more than `limit`, or if only Spark can find them. The searched columns are included.
        """
        state, root = self._state(path, version), self._direct_root(path)
        if root is None or not self._is_searchable(root, state, wanted):
            return None
        try:
            schema = arrow_schema_of(state.metadata.schema_string)
            return look_up(root, pruned(state, comparable(wanted)), schema, wanted, limit)
        except (UnreadableVectorError, UnreadableFileError):
            return None

    def rows_at(self, path: str, version: int, places: pa.Table) -> DataFrame | None:
        """The rows at places of `look_up`, as `read_located` returns them; `None` if only Spark can read them."""
        rows = self.arrow_at(path, version, places)
        if rows is None:
            return None
        fields = [StructField(f.name, f.dataType, nullable=True) for f in _schema(self._state(path, version)).fields]
        return self._spark.createDataFrame(rows, schema=StructType([*fields, *POSITION_SCHEMA.fields]))

    def arrow_at(self, path: str, version: int, places: pa.Table) -> pa.Table | None:
        """Like `rows_at`, as an Arrow table on the driver."""
        state, root = self._state(path, version), self._direct_root(path)
        assert root is not None, "look_up gave the places"
        try:
            return rows_at(root, arrow_schema_of(state.metadata.schema_string), places)
        except UnreadableFileError:
            return None

    def rows(self, path: str, version: int, max_rows: int) -> pa.Table | None:
        """All rows on the driver; `None` if there are more than `max_rows`, or if only Spark can read them."""
        state, root = self._state(path, version), self._direct_root(path)
        if root is None or state.num_rows is None or state.num_rows > max_rows or not _is_plain(root, state):
            return None
        try:
            return driver_scan(root, state, arrow_schema_of(state.metadata.schema_string), located=False)
        except (UnreadableVectorError, UnreadableFileError, UnsupportedTypeError):
            return None

    def is_small(self, path: str, version: int) -> bool:
        """Whether `read_located` returns rows that are on the driver, without a scan."""
        state, root = self._state(path, version), self._direct_root(path)
        return root is not None and _is_plain(root, state) and fits_driver(state)

    def _is_searchable(self, root: Path, state: TableState, wanted: Wanted) -> bool:
        exact = all(has_exact_equality(values.type) for values in wanted.values())
        return exact and _is_plain(root, state) and is_searchable(state, len(wanted))

    def changes(
        self,
        path: str,
        after: int,
        upto: int,
        columns: Sequence[str] | None = None,
        *,
        summary: RangeSummary | None = None,
    ) -> Changes:
        """The delta between two versions as a Z-set with `naming.WEIGHT`.

        Args:
            summary: the result of `classify` for the same range and columns, if the caller already has it.

        Raises:
            MillstreamError: `FRONTIER_LOST` if the range has no delta.
        """
        summary = summary or self.classify(path, after, upto, columns)
        if not summary.kind.has_delta:
            raise MillstreamError(Code.FRONTIER_LOST, f"{path} has no changes from {after} to {upto}: {summary.reason}")
        fields = narrowed(_schema(self._state(path, upto)), columns).fields
        schema = StructType([StructField(f.name, f.dataType, nullable=True) for f in fields])
        weighted = StructType([*schema.fields, StructField(naming.WEIGHT, LongType(), nullable=False)])
        if summary.kind is RangeKind.NOTHING:
            return Changes(weighted, _no_rows(weighted), lambda: self._spark.createDataFrame([], weighted))
        root = self._direct_root(path)
        if root is not None and summary.direct_safe and summary.feed_rows <= self._settings.direct_max_rows:
            try:
                rows = read_changes(root, self._log(path), after, upto, arrow_schema(schema))
                return self._arrow_changes(rows, weighted)
            except (UnreadableFileError, UnreadableVectorError):
                pass  # Delta's reader knows more formats, or gives the better error
        spark, names = self._spark, schema.names
        return Changes(weighted, None, lambda: delta_connector.changes(spark, normalised(path), after, upto, names))

    def _arrow_changes(self, rows: pa.Table, schema: StructType) -> Changes:
        return Changes(schema, rows, lambda: self._spark.createDataFrame(rows, schema=schema))

    def _read(self, path: str, version: int, columns: Sequence[str] | None, *, located: bool) -> DataFrame:
        state = self._state(path, version)
        root = self._direct_root(path)
        if root is not None and _is_plain(root, state):
            try:
                if fits_driver(state):
                    return self._on_driver(root, state, columns, located=located)
                return scan(self._spark, root, state, columns, located=located)
            except (UnreadableVectorError, UnreadableFileError, UnsupportedTypeError):
                pass  # Delta's reader knows more formats, or gives the better error
        partitions = len(state.metadata.partition_columns)
        return delta_connector.read(self._spark, normalised(path), version, columns, partitions, located=located)

    def _on_driver(self, root: Path, state: TableState, columns: Sequence[str] | None, *, located: bool) -> DataFrame:
        fields = narrowed(_schema(state), columns).fields
        schema = StructType([StructField(f.name, f.dataType, nullable=True) for f in fields])
        rows = driver_scan(root, state, arrow_schema(schema), located=located)
        if located:
            schema = StructType([*schema.fields, *POSITION_SCHEMA.fields])
        return self._spark.createDataFrame(rows, schema=schema)

    def frame(self, rows: Rows, schema: StructType) -> DataFrame:
        """Rows for Spark to read, with the types of `schema`."""
        return delta_connector.as_frame(self._spark, rows, schema)

    # Writing

    def create(
        self,
        path: str,
        schema: StructType,
        *,
        stats_columns: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create an empty table of ours.

        Args:
            stats_columns: columns with bounds per file: keys that are integers, strings or dates.
        """
        check_names(schema)
        wanted = properties_of(schema, stats_columns, properties or {})
        root = self._direct_root(path)
        try:
            arrow_schema(schema)
        except UnsupportedTypeError:
            root = None
        with writing(path):
            if root is None:
                if self.exists(path):
                    raise _taken(path)
                delta_connector.create(self._spark, normalised(path), schema, wanted)
            elif not create_directly(root, schema, wanted):
                raise _taken(path)

    def replace(self, path: str, rows: Rows, txn: Txn, metadata: Mapping[str, object]) -> Commit:
        """Replace the contents with other rows, in one commit; readers never see an empty table."""
        return self._writer(path).write(rows, txn, metadata, replace=True)

    def append(self, path: str, rows: Rows, txn: Txn, metadata: Mapping[str, object]) -> Commit:
        """Add rows."""
        return self._writer(path).write(rows, txn, metadata, replace=False)

    def append_written(self, path: str, write: Write, txn: Txn, metadata: Mapping[str, object]) -> Commit | None:
        """Append the rows of files that `write` puts into a directory; `None` if only Spark can write the table."""
        return self._writer(path).append_written(write, txn, metadata)

    def apply(self, path: str, change: ChangeSet, txn: Txn, metadata: Mapping[str, object]) -> Commit | None:
        """Remove and add rows in one commit; `None` if there is nothing to do.

        Raises:
            MillstreamError: `COMMIT_CONFLICT` if the table has changed since `change.expected_version`.
        """
        return self._writer(path).apply(change, txn, metadata)

    def widen(self, path: str, schema: StructType, rows: Rows, txn: Txn, metadata: Mapping[str, object]) -> Commit:
        """Add columns to a table of ours; readers of the old columns see no change.

        Args:
            schema: the table's columns, and the new ones.
            rows: equal to the table's rows in the old columns; the caller guarantees this.
        """
        check_names(schema)
        return self._writer(path).widen(schema, rows, txn, metadata)

    def enable_change_data_feed(self, path: str) -> int:
        """Enable the change data feed; returns the version from which changes are recorded."""
        state = self._state(path, None)
        if not state.metadata.has_change_feed:
            name = delta_connector.table(normalised(path))
            self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
        return self.version(path)

    def upkeep(self, path: str) -> TableUpkeep | None:
        """The upkeep of a table of ours; `None` if its files are not on this machine, or only Spark may write them."""
        root = self._direct_root(path)
        return TableUpkeep(self._spark, root, self._log(path)) if root is not None else None

    def make_durable(self, path: str, after: int, upto: int) -> None:
        """Flush the commits after a version to disk, if the table is on this machine; object stores do not need it.

        Args:
            after: -1 for all.

        Raises:
            MillstreamError: LAKE_UNWRITABLE.
        """
        root = local_root(path)
        if root is None or upto <= after:
            return
        try:
            sync_commits(root, after, upto)
        except OSError as e:
            raise MillstreamError(
                Code.LAKE_UNWRITABLE, f"{root} cannot be written: {e.strerror}", hint="check the disk"
            ) from e

    # Internals

    def _writer(self, path: str) -> TableWriter:
        self._state(path, None)  # raises the right error for a missing or damaged table
        return TableWriter(
            spark=self._spark,
            path=normalised(path),
            log=self._log(path),
            root=self._direct_root(path),
            locate=lambda version: self.read_located(path, version),
            max_driver_rows=self._settings.direct_max_rows,
            strategy=self._settings.merge_strategy,
        )

    def _state(self, path: str, version: int | None) -> TableState:
        try:
            return self._log(path).state(version)
        except LogGoneError as e:
            raise MillstreamError(Code.FRONTIER_LOST, str(e)) from e

    def _log(self, path: str) -> TableLog:
        key = normalised(path)
        with self._lock:
            log = self._logs.get(key)
            if log is None:
                root = self._direct_root(path)
                files: LogFiles = PosixLogFiles(root) if root is not None else SparkLogFiles(self._spark, key)
                log = self._logs[key] = TableLog(key, files)
            return log

    def _direct_root(self, path: str) -> Path | None:
        return local_root(path) if self._settings.direct_way == "auto" else None


def _is_plain(root: Path, state: TableState) -> bool:
    """Whether the table's files can be read without Delta's own reader."""
    return not reading_obstacle(state) and not scan_obstacle(root, state)


def _schema(state: TableState) -> StructType:
    try:
        return spark_schema(state.metadata.schema_string)
    except UnsupportedTypeError as e:
        raise MillstreamError(Code.UNSUPPORTED_TYPE, str(e)) from e


def _no_rows(schema: StructType) -> pa.Table | None:
    try:
        return arrow_schema(schema).empty_table()
    except UnsupportedTypeError:
        return None


def _taken(path: str) -> MillstreamError:
    return MillstreamError(Code.NAME_TAKEN, f"there is already a Delta table at {path}")
