"""Figures of the whole history per stream table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.schema import refresh_history, stream_tables
from millstream.naming import TableName
from millstream.results import Action, RefreshMode, RefreshStats, RefreshStatus, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Row


def stats_query() -> sa.Select[Any]:
    """One row per stream table, by name."""
    h = refresh_history.c

    def count(status: RefreshStatus) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((h.status == status, 1), else_=0))

    totals = (
        sa.select(
            h.stream_table_id,
            sa.func.count().label("total"),
            count(RefreshStatus.COMPLETED).label("completed"),
            count(RefreshStatus.FAILED).label("failed"),
            sa.func.sum(h.rows_inserted).label("inserted"),
            sa.func.sum(h.rows_updated).label("updated"),
            sa.func.sum(h.rows_deleted).label("deleted"),
            sa.func.avg(sa.case((h.status == RefreshStatus.COMPLETED, h.duration_ms))).label("average_ms"),
            sa.func.max(h.refresh_id).label("last_id"),
        )
        .group_by(h.stream_table_id)
        .subquery()
    )
    t = stream_tables.c
    return (
        sa.select(
            t.schema_name,
            t.name,
            t.status,
            t.refresh_mode,
            t.is_populated,
            t.data_timestamp,
            totals,
            h.action.label("last_action"),
            h.status.label("last_status"),
            sa.func.coalesce(h.end_time, h.start_time).label("last_at"),
        )
        .select_from(stream_tables)
        .outerjoin(totals, totals.c.stream_table_id == t.id)
        .outerjoin(refresh_history, h.refresh_id == totals.c.last_id)
        .order_by(t.schema_name, t.name)
    )


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
        total_refreshes=row.total or 0,
        successful_refreshes=row.completed or 0,
        failed_refreshes=row.failed or 0,
        # PostgreSQL sums BIGINT as NUMERIC.
        total_rows_inserted=int(row.inserted or 0),
        total_rows_updated=int(row.updated or 0),
        total_rows_deleted=int(row.deleted or 0),
        avg_duration_ms=row.average_ms,
        last_refresh_action=None if row.last_action is None else Action(row.last_action),
        last_refresh_status=None if row.last_status is None else RefreshStatus(row.last_status),
        last_refresh_at=row.last_at,
        staleness_secs=staleness,
        stale=staleness is not None and limit is not None and staleness > limit,
    )


def age(moment: datetime | None, now: datetime) -> float | None:
    """The seconds since a time."""
    return None if moment is None else (now - moment).total_seconds()
