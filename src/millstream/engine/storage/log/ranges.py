"""What happened between two versions, determined from the log alone: no Spark job, no data file opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.engine.storage.files.deletion_vector import stored_name
from millstream.engine.storage.files.schema import UnsupportedTypeError, spark_schema, types_of
from millstream.engine.storage.log.actions import DataFile, LogCommit, Metadata
from millstream.engine.storage.log.features import reading_obstacle
from millstream.engine.storage.log.log_files import LogGoneError
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import RangeKind, RangeSummary
from millstream.engine.storage.write.commit import ENGINE


def classify(
    log: TableLog, after: int, upto: int, columns: Sequence[str] | None = None, table_id: str | None = None
) -> RangeSummary:
    """Classify the commits `(after, upto]`.

    Args:
        columns: the columns that are read; changes to others do not count as a changed schema.
        table_id: the table's id when `after` was read. Without it, a table that was dropped and created again, and
            has had as many commits since, cannot be distinguished from the old one.
    """
    if upto < after:
        return RangeSummary(RangeKind.RECREATED, reason=f"version {after} was read, but the table is at {upto}")
    try:
        base, commits, end = log.state(after), log.commits(after, upto), log.state(upto)
    except LogGoneError as e:
        return RangeSummary(RangeKind.LOST, reason=str(e))
    if {base.metadata.table_id, end.metadata.table_id} != {table_id or end.metadata.table_id}:
        return RangeSummary(RangeKind.RECREATED, reason="the table was replaced by another")
    for commit in commits:
        if commit.metadata is not None and (reason := _schema_change(base.metadata, commit.metadata, columns)):
            return RangeSummary(RangeKind.SCHEMA_CHANGED, reason=reason)
    changing = [c for c in commits if c.changes_rows]
    if not changing:
        return RangeSummary(RangeKind.NOTHING, direct_safe=True, reason="no row changed")
    if reason := _unrecorded(base.metadata, commits):
        return RangeSummary(RangeKind.LOST, reason=reason)
    missing = log.files.missing(_files_needed(changing))
    if missing:
        return RangeSummary(
            RangeKind.LOST, reason=f"{len(missing)} files of past changes no longer exist, first {missing[0]}"
        )
    return _summary(base, commits, reading_obstacle(base) or reading_obstacle(end))


def _schema_change(old: Metadata, new: Metadata, columns: Sequence[str] | None) -> str | None:
    if old.configuration.get("delta.columnMapping.mode", "none") != new.configuration.get(
        "delta.columnMapping.mode", "none"
    ):
        return "the column mapping mode was changed"
    if old.schema_string == new.schema_string:
        return None
    try:
        before = types_of(spark_schema(old.schema_string))
        now = types_of(spark_schema(new.schema_string))
    except UnsupportedTypeError as e:
        return str(e)
    if columns is None:
        watched = before.keys() | now.keys()
    else:
        # Spark reads no feed across a column that was renamed or dropped with column mapping, even if it is not used.
        watched = {c.lower() for c in columns} | (before.keys() if new.maps_columns else set())
    changed = sorted(name for name in watched if before.get(name) != now.get(name))
    return f"column {changed[0]} changed" if changed else None


def _unrecorded(metadata: Metadata, commits: Sequence[LogCommit]) -> str | None:
    for commit in commits:
        metadata = commit.metadata or metadata
        if not metadata.has_change_feed:
            return f"the change data feed was off at version {commit.version}"
    return None


def _files_needed(commits: Sequence[LogCommit]) -> list[str]:
    needed: list[str] = []
    for commit in commits:
        files = commit.changes or [f for f in (*commit.adds, *commit.removes) if f.data_change]
        needed += [f.path for f in files]
        if not commit.changes:
            needed += [name for f in files if (name := stored_name(f.deletion_vector))]
    return list(dict.fromkeys(needed))


@dataclass
class _Tally:
    changed: int = 0
    feed: int = 0
    exact: bool = True


def _summary(base: TableState, commits: Sequence[LogCommit], obstacle: str | None) -> RangeSummary:
    live = dict(base.files)
    kind, tally = RangeKind.APPEND_ONLY, _Tally()
    for commit in commits:
        if commit.changes_rows:
            _count(commit, live, tally)
            kind = max(kind, _kind(commit, live), key=_SEVERITY.index)
        for file in commit.removes:
            live.pop(file.path, None)
        live.update((f.path, f) for f in commit.adds)
    reason = f"read through Spark: {obstacle}" if obstacle else f"{len(commits)} commits"
    return RangeSummary(kind, tally.changed, tally.feed, tally.exact, obstacle is None, reason)


_SEVERITY = (RangeKind.APPEND_ONLY, RangeKind.MUTATING, RangeKind.REPLACED)


def _kind(commit: LogCommit, live: dict[str, DataFile]) -> RangeKind:
    if commit.changes:
        ours = commit.info.get("engineInfo") == ENGINE
        grew_only = ours and commit.count("numTargetRowsUpdated", "numTargetRowsDeleted") == 0
        return RangeKind.APPEND_ONLY if grew_only else RangeKind.MUTATING
    gone = {f.path for f in commit.removes if f.data_change}
    if not gone:
        return RangeKind.APPEND_ONLY
    kept = live.keys() - gone | {f.path for f in commit.adds if f.path in gone}
    return RangeKind.MUTATING if kept else RangeKind.REPLACED


def _count(commit: LogCommit, live: dict[str, DataFile], tally: _Tally) -> None:
    if commit.changes:
        counted = _recorded_counts(commit)
        if counted is None:
            counted = _rows_by_size(sum(f.size for f in commit.changes), live), 0
            tally.exact = False
        tally.changed += counted[0] + counted[1]
        tally.feed += counted[0] + 2 * counted[1]
        return
    added = {f.path: f for f in commit.adds if f.data_change}
    removed = {f.path: live.get(f.path, f) for f in commit.removes if f.data_change}
    for path in added.keys() | removed.keys():
        rows = _file_rows(removed.get(path), added.get(path))
        if rows is None:
            rows = _rows_by_size((added.get(path) or removed[path]).size, live)
            tally.exact = False
        tally.changed += rows
        tally.feed += rows


def _file_rows(old: DataFile | None, new: DataFile | None) -> int | None:
    if old and new:
        return abs(new.num_dead - old.num_dead)
    file = new or old
    return file.num_live if file else 0


def _recorded_counts(commit: LogCommit) -> tuple[int, int] | None:
    """Rows inserted or deleted, and rows updated, from the metrics of the commands that write change files."""
    merged = commit.count("numTargetRowsInserted", "numTargetRowsDeleted")
    updated = commit.count("numTargetRowsUpdated")
    if merged is not None and updated is not None:
        return merged, updated
    operation = commit.info.get("operation")
    if operation == "UPDATE" and (rows := commit.count("numUpdatedRows")) is not None:
        return 0, rows
    if operation == "DELETE" and (rows := commit.count("numDeletedRows")) is not None:
        return rows, 0
    return None


def _rows_by_size(size: int, live: dict[str, DataFile]) -> int:
    measured = [f for f in live.values() if f.num_records]
    rows, total = sum(f.num_records or 0 for f in measured), sum(f.size for f in measured)
    bytes_per_row = total / rows if rows and total else 100.0
    return max(1, round(size / bytes_per_row))
