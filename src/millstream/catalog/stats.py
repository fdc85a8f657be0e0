"""Totals over all refreshes per stream table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.schema import stream_tables
from millstream.naming import TableName
from millstream.results import Action, RefreshMode, RefreshStats, RefreshStatus, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Row


def stats_query() -> sa.Select[Any]:
    """One row per stream table, by name: from the counters in it, so that the history is not read."""
    t = stream_tables.c
    return sa.select(
        t.schema_name,
        t.name,
        t.status,
        t.refresh_mode,
        t.is_populated,
        t.data_timestamp,
        t.total_refreshes,
        t.successful_refreshes,
        t.failed_refreshes,
        t.total_rows_inserted,
        t.total_rows_updated,
        t.total_rows_deleted,
        t.completed_duration_ms,
        t.newest_action,
        t.newest_status,
        t.newest_at,
    ).order_by(t.schema_name, t.name)


def stats_of(row: Row[Any], now: datetime, stale_after: Mapping[TableName, float]) -> RefreshStats:
    """The figures in a row of `stats_query`."""
    name = TableName(row.schema_name, row.name)
    staleness = age(row.data_timestamp, now)
    limit = stale_after.get(name)
    return RefreshStats(
        name=row.name,
        schema=row.schema_name,
        status=Status(row.status),
        refresh_mode=RefreshMode(row.refresh_mode),
        is_populated=row.is_populated,
        total_refreshes=row.total_refreshes,
        successful_refreshes=row.successful_refreshes,
        failed_refreshes=row.failed_refreshes,
        total_rows_inserted=row.total_rows_inserted,
        total_rows_updated=row.total_rows_updated,
        total_rows_deleted=row.total_rows_deleted,
        avg_duration_ms=row.completed_duration_ms / row.successful_refreshes if row.successful_refreshes else None,
        last_refresh_action=None if row.newest_action is None else Action(row.newest_action),
        last_refresh_status=None if row.newest_status is None else RefreshStatus(row.newest_status),
        last_refresh_at=row.newest_at,
        staleness_secs=staleness,
        stale=None if limit is None else staleness is not None and staleness > limit,
    )


def age(moment: datetime | None, now: datetime) -> float | None:
    """The seconds since a time."""
    return None if moment is None else (now - moment).total_seconds()
