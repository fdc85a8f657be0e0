"""An oracle for the totals of refreshes: a query over the whole history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.catalog import Catalog
from millstream.catalog.schema import refresh_history, stream_tables
from millstream.results import RefreshStats, RefreshStatus


def from_history(catalog: Catalog) -> dict[str, Mapping[str, Any]]:
    """The totals by a query over the whole history: as `stats` computed them up to version 3, with `repeats`."""
    h = refresh_history.c

    def count(status: RefreshStatus) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((h.status == status, h.repeats), else_=0))

    totals = (
        sa.select(
            h.stream_table_id,
            sa.func.sum(h.repeats).label("total_refreshes"),
            count(RefreshStatus.COMPLETED).label("successful_refreshes"),
            count(RefreshStatus.FAILED).label("failed_refreshes"),
            sa.func.sum(h.rows_inserted).label("total_rows_inserted"),
            sa.func.sum(h.rows_updated).label("total_rows_updated"),
            sa.func.sum(h.rows_deleted).label("total_rows_deleted"),
            sa.func.sum(sa.case((h.status == RefreshStatus.COMPLETED, h.duration_ms * h.repeats))).label("ms"),
            sa.func.max(h.refresh_id).label("last_id"),
        )
        .group_by(h.stream_table_id)
        .subquery()
    )
    chosen = (
        sa.select(
            stream_tables.c.name,
            totals,
            h.action.label("last_refresh_action"),
            h.status.label("last_refresh_status"),
            sa.func.coalesce(h.end_time, h.start_time).label("last_refresh_at"),
        )
        .join_from(stream_tables, totals, totals.c.stream_table_id == stream_tables.c.id)
        .join(refresh_history, h.refresh_id == totals.c.last_id)
    )
    with catalog._database.read() as connection:
        return {row["name"]: row for row in connection.execute(chosen).mappings()}


def assert_equal(catalog: Catalog) -> None:
    """What `stats` says equals what the history says."""
    expected = from_history(catalog)
    for found in catalog.stats():
        row = expected.get(found.name)
        if row is None:
            assert found.total_refreshes == 0
            continue
        figures = {k: int(v) if k.startswith(("total", "succ", "fail")) else v for k, v in row.items()}
        assert {k: getattr(found, k) for k in figures if hasattr(RefreshStats, k)} == {
            k: v for k, v in figures.items() if hasattr(RefreshStats, k)
        }
        average = None if not figures["successful_refreshes"] else figures["ms"] / figures["successful_refreshes"]
        assert found.avg_duration_ms == pytest.approx(average)
