"""What a process that refreshes by itself needs: leadership, events, counters of refreshes, and repeated NO_DATA.

| table | new |
|---|---|
| `ms_lake` | who leads the lake, in which epoch, when it last woke, and whether all refreshes are paused |
| `ms_stream_tables` | totals over all refreshes and the newest of them, so that no figure needs the whole history |
| `ms_refresh_history` | `repeats`: for how many refreshes in a row the row stands |
| `ms_events` | what happened |

The totals are computed from the history as it is now; history that was pruned before is not part of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.JSON(none_as_null=True)
_MOMENT = sa.DateTime(timezone=True)

_COLUMNS: dict[str, tuple[tuple[str, Any, str | None], ...]] = {
    "ms_lake": (
        ("leader_epoch", _BIG, "0"),
        ("leader", _JSON, None),
        ("woke_at", _MOMENT, None),
        ("is_paused", sa.Boolean(), "false"),
    ),
    "ms_stream_tables": (
        ("total_refreshes", _BIG, "0"),
        ("successful_refreshes", _BIG, "0"),
        ("failed_refreshes", _BIG, "0"),
        ("total_rows_inserted", _BIG, "0"),
        ("total_rows_updated", _BIG, "0"),
        ("total_rows_deleted", _BIG, "0"),
        ("completed_duration_ms", sa.Double(), "0"),
        ("newest_refresh_id", _BIG, None),
        ("newest_action", sa.Text(), None),
        ("newest_status", sa.Text(), None),
        ("newest_at", _MOMENT, None),
    ),
    "ms_refresh_history": (("repeats", sa.Integer(), "1"),),
}
"""The name, type and default of each new column; one without a default may be NULL."""

_METADATA = sa.MetaData()
_EVENTS = sa.Table(
    "ms_events",
    _METADATA,
    sa.Column("event_id", _BIG, primary_key=True, autoincrement=True),
    sa.Column("at", _MOMENT, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("stream_table", sa.Text),
    sa.Column("schema_name", sa.Text),
    sa.Column("database", sa.Text),
    sa.Column("fields", _JSON, nullable=False),
    sa.Index("ms_events_at", "at"),
    sqlite_autoincrement=True,  # a follower asks for ids above the last one it saw, also after pruning
)

_TABLES = sa.table("ms_stream_tables", sa.column("id"), *(sa.column(n, t) for n, t, _ in _COLUMNS["ms_stream_tables"]))
_HISTORY = sa.table(
    "ms_refresh_history",
    *map(sa.column, ("refresh_id", "stream_table_id", "action", "status")),
    *map(sa.column, ("rows_inserted", "rows_updated", "rows_deleted", "duration_ms")),
    sa.column("start_time", _MOMENT),
    sa.column("end_time", _MOMENT),
)


def upgrade(connection: Connection, _root: Path | None) -> None:
    """Add the columns and the table, and fill the counters from the history."""
    for table, columns in _COLUMNS.items():
        for name, type_, default in columns:
            ending = "" if default is None else f" NOT NULL DEFAULT {default}"
            kind = type_.compile(connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}{ending}")
    _METADATA.create_all(connection, checkfirst=False)
    for row in connection.execute(_totals()).mappings().all():
        values = {name: value for name, value in row.items() if name != "stream_table_id"}
        connection.execute(sa.update(_TABLES).where(_TABLES.c.id == row["stream_table_id"]).values(values))


def _totals() -> sa.Select[Any]:
    """The new columns of each stream table that has a history."""
    h = _HISTORY.c
    is_completed = h.status == "COMPLETED"
    totals = (
        sa.select(
            h.stream_table_id,
            sa.func.count().label("total_refreshes"),
            sa.func.sum(sa.case((is_completed, 1), else_=0)).label("successful_refreshes"),
            sa.func.sum(sa.case((h.status == "FAILED", 1), else_=0)).label("failed_refreshes"),
            sa.func.sum(h.rows_inserted).label("total_rows_inserted"),
            sa.func.sum(h.rows_updated).label("total_rows_updated"),
            sa.func.sum(h.rows_deleted).label("total_rows_deleted"),
            sa.func.coalesce(sa.func.sum(sa.case((is_completed, h.duration_ms))), 0.0).label("completed_duration_ms"),
            sa.func.max(h.refresh_id).label("newest_refresh_id"),
        )
        .group_by(h.stream_table_id)
        .subquery()
    )
    newest_at = sa.func.coalesce(h.end_time, h.start_time, type_=_MOMENT).label("newest_at")
    return sa.select(totals, h.action.label("newest_action"), h.status.label("newest_status"), newest_at).join_from(
        totals, _HISTORY, h.refresh_id == totals.c.newest_refresh_id
    )
