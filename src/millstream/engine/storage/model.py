"""What the storage layer returns and accepts: frozen records, no behaviour that touches a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.naming import RESERVED_PREFIX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHANGE = RESERVED_PREFIX + "change"
"""Optional column of a change set's rows: the label of each row in the change feed."""

DELETE, PREIMAGE, INSERT, POSTIMAGE = "delete", "update_preimage", "insert", "update_postimage"

Rows: TypeAlias = pa.Table | DataFrame
"""Rows on the driver, or a plan that Spark has not run yet."""
Write: TypeAlias = Callable[[Path], Sequence[Path]]
"""Writes Parquet files of a table's columns, as `data_file.open_writer` does, into a directory, and returns them."""


@dataclass(frozen=True, slots=True)
class Txn:
    """The application that commits, and the number of its commit. Numbers of one application only grow.

    Args:
        is_durable: the files are on disk before the log names them, so that the table survives a power cut.
        permit: called right before the commit, or before Spark begins to make it; raises if it must not be made.
    """

    app_id: str
    version: int
    is_durable: bool = field(default=False, compare=False)
    permit: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version, as its log describes it.

    `num_rows` counts live rows and is `None` if a file has no statistics.
    """

    version: int
    table_id: str
    schema: tuple[tuple[str, str, bool], ...]
    partition_columns: tuple[str, ...]
    num_files: int
    num_rows: int | None
    size_bytes: int
    writer_features: frozenset[str]
    configuration: Mapping[str, str]
    spark_schema: StructType = field(compare=False, repr=False)

    @property
    def has_change_feed(self) -> bool:
        """Whether commits record their changes from this version on."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


class RangeKind(StrEnum):
    """What happened to a table in a range of versions."""

    NOTHING = "NOTHING"
    """No row changed (OPTIMIZE, properties, an unused column added)."""
    APPEND_ONLY = "APPEND_ONLY"
    MUTATING = "MUTATING"
    REPLACED = "REPLACED"
    """A commit removed every earlier file (overwrite, RESTORE, TRUNCATE); the change feed still has the delta."""
    RECREATED = "RECREATED"
    """It is another table now; the two versions are unrelated."""
    SCHEMA_CHANGED = "SCHEMA_CHANGED"
    """A column that is read changed its type or name, or was dropped."""
    LOST = "LOST"
    """Commits or change files no longer exist, or no changes were recorded."""

    @property
    def has_delta(self) -> bool:
        """Whether `DeltaStore.changes` can return the delta."""
        return self in (RangeKind.NOTHING, RangeKind.APPEND_ONLY, RangeKind.MUTATING, RangeKind.REPLACED)


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """A range `(after, upto]`, classified from the log alone.

    Args:
        changed_rows: rows inserted, deleted or updated; an update counts once.
        feed_rows: rows in the change feed; an update counts as two.
        exact: whether the log states the counts; otherwise they are estimated from file sizes.
        direct_safe: whether the direct reader returns the correct delta for this range.
        reason: why it is of this kind, or why the direct reader cannot read it; for the refresh history.
    """

    kind: RangeKind
    changed_rows: int = 0
    feed_rows: int = 0
    exact: bool = True
    direct_safe: bool = False
    reason: str = ""


class Changes:
    """The delta between two versions as a Z-set: the table's columns and `naming.WEIGHT`.

    Args:
        schema: the Spark schema of `frame`, the weight last.
        arrow: the rows, if they were read on the driver; equal rows are then already summed, as far as Arrow can
            compare their types.
        make_frame: builds the DataFrame on first use.
    """

    def __init__(self, schema: StructType, arrow: pa.Table | None, make_frame: Callable[[], DataFrame]) -> None:
        self.schema = schema
        self.arrow = arrow
        self._make_frame = make_frame

    @cached_property
    def frame(self) -> DataFrame:
        """The Z-set as a DataFrame."""
        return self._make_frame()


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What one commit does to a table we own.

    Args:
        removed: the old rows: the table's columns, `naming.FILE` and `naming.ROW` (as `read_located` returned them),
            and optionally `CHANGE` (`delete`, the default, or `update_preimage`).
        added: the new rows: the table's columns and optionally `CHANGE` (`insert` or `update_postimage`).
        expected_version: the version in which `removed` was looked up.
        key_columns: columns in which no two rows of the table agree (NULLs are equal); empty for a bag of rows.
    """

    removed: Rows | None
    added: Rows | None
    expected_version: int
    key_columns: Sequence[str] = ()

    def without_updates(self) -> ChangeSet:
        """The same change as deletions and insertions only."""
        return replace(self, removed=_unlabelled(self.removed), added=_unlabelled(self.added))


def _unlabelled(rows: Rows | None) -> Rows | None:
    if isinstance(rows, pa.Table):
        return rows.drop_columns([CHANGE]) if CHANGE in rows.column_names else rows
    return rows.drop(CHANGE) if rows is not None else None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit in the log. `repeated` is set if an earlier call had already made it."""

    version: int
    rows_written: int = 0
    rows_removed: int = 0
    repeated: bool = False
