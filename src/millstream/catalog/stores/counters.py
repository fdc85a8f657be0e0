"""The totals over all refreshes of a stream table, kept in its row with every change of its history.

The totals include refreshes whose history was pruned. `newest_*` describes the refresh with the highest id, also while
it is running: a refresh may be skipped, under a higher id, while another one runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.schema import UtcTimestamp, stream_tables
from millstream.results import Action, RefreshStatus

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_t = stream_tables.c
_id = sa.bindparam("counted_id", type_=sa.BigInteger)
_is_newest = _t.newest_refresh_id.is_(None) | (_t.newest_refresh_id <= _id)


def _plus(column: str) -> sa.ColumnElement[Any]:
    return _t[column] + sa.bindparam(f"more_{column}", type_=_t[column].type)


def _newest(column: str) -> sa.ColumnElement[Any]:
    kind = UtcTimestamp() if column == "newest_at" else sa.Text()
    return sa.case((_is_newest, sa.bindparam(f"its_{column}", type_=kind)), else_=_t[column])


_TOTALS = (
    "total_refreshes",
    "successful_refreshes",
    "failed_refreshes",
    "total_rows_inserted",
    "total_rows_updated",
    "total_rows_deleted",
    "completed_duration_ms",
)

COUNTED: dict[str, Any] = {
    **{name: _plus(name) for name in _TOTALS},
    "newest_refresh_id": sa.case((_is_newest, _id), else_=_t.newest_refresh_id),
    **{name: _newest(name) for name in ("newest_action", "newest_status", "newest_at")},
}
"""The columns that `parameters` are for, in an UPDATE of a stream table."""

REPEATED: dict[str, Any] = {
    "total_refreshes": _t.total_refreshes + 1,
    "successful_refreshes": _t.successful_refreshes + 1,
    "completed_duration_ms": _t.completed_duration_ms + sa.bindparam("more_duration_ms", type_=sa.Double),
    "newest_at": sa.bindparam("its_newest_at", type_=UtcTimestamp),
}
"""The columns for one more refresh that shares the newest row of the history."""

_COUNT = sa.update(stream_tables).where(_t.id == sa.bindparam("of_id")).values(**COUNTED)


def parameters(
    refresh_id: int,
    status: RefreshStatus,
    action: Action | None,
    at: datetime,
    *,
    before: RefreshStatus | None = None,
    rows: tuple[int, int, int] = (0, 0, 0),
    duration_ms: float = 0.0,
) -> dict[str, Any]:
    """What a new state of a refresh adds to the totals.

    Args:
        at: when it ended or, while it is running, started.
        before: the state it was counted in; None for a new one.
    """
    is_completed = status is RefreshStatus.COMPLETED
    inserted, updated, deleted = rows
    more = {
        "total_refreshes": int(before is None),
        "successful_refreshes": int(is_completed) - int(before is RefreshStatus.COMPLETED),
        "failed_refreshes": int(status is RefreshStatus.FAILED) - int(before is RefreshStatus.FAILED),
        "total_rows_inserted": inserted,
        "total_rows_updated": updated,
        "total_rows_deleted": deleted,
        "completed_duration_ms": duration_ms if is_completed else 0.0,
    }
    return {
        "counted_id": refresh_id,
        **{f"more_{name}": value for name, value in more.items()},
        "its_newest_action": action,
        "its_newest_status": status,
        "its_newest_at": at,
    }


def count(connection: Connection, table_id: str, given: dict[str, Any]) -> None:
    """Add `parameters` to the totals of a stream table."""
    connection.execute(_COUNT, {"of_id": table_id, **given})
