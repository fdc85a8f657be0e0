"""The catalog's tables as the newest migration leaves them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect


class UtcTimestamp(sa.types.TypeDecorator[datetime]):
    """A time with a time zone: TIMESTAMPTZ in PostgreSQL, the UTC time as text in SQLite."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a time zone: {value}")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


metadata = sa.MetaData()

# In SQLite, only an INTEGER primary key, not a BIGINT one, becomes the row id.
_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.JSON(none_as_null=True)


def _table_id(primary_key: bool = False) -> sa.Column[str]:
    reference = sa.ForeignKey("ms_stream_tables.id", ondelete="CASCADE")
    return sa.Column("stream_table_id", sa.Text, reference, nullable=False, primary_key=primary_key)


migrations = sa.Table(
    "ms_migrations",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("applied_at", UtcTimestamp, nullable=False),
)

# One row. Its lock serialises the writers of a PostgreSQL catalog: see `stores.lake`.
lake = sa.Table(
    "ms_lake",
    metadata,
    sa.Column("only_row", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("lake_id", sa.Text, nullable=False),
    sa.Column("generation", _BIG, nullable=False),
    sa.Column("last_refresh_id", _BIG, nullable=False),
    sa.Column("leader_epoch", _BIG, nullable=False, server_default="0"),
    sa.Column("leader", _JSON),
    sa.Column("woke_at", UtcTimestamp),
    sa.Column("is_paused", sa.Boolean, nullable=False, server_default=sa.false()),
)

stream_tables = sa.Table(
    "ms_stream_tables",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("schema_name", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("original_query", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),
    sa.Column("schedule", sa.Text, nullable=False),
    sa.Column("refresh_mode", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("status_reason", sa.Text),
    sa.Column("is_populated", sa.Boolean, nullable=False),
    sa.Column("data_timestamp", UtcTimestamp),
    sa.Column("frontier", _JSON, nullable=False),
    sa.Column("base_frontier", _JSON, nullable=False),
    sa.Column("last_refresh_at", UtcTimestamp),
    sa.Column("consecutive_errors", sa.Integer, nullable=False),
    sa.Column("needs_reinit", sa.Boolean, nullable=False),
    sa.Column("reinit_reason", sa.Text),
    sa.Column("reinit_mark", sa.Integer, nullable=False),
    sa.Column("definition", _JSON, nullable=False),
    sa.Column("definition_version", sa.Integer, nullable=False),
    sa.Column("settings", _JSON, nullable=False),
    sa.Column("columns", _JSON, nullable=False),
    sa.Column("functions_used", _JSON, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
    # Totals over all refreshes, also those whose history was pruned, and the refresh with the highest id.
    sa.Column("total_refreshes", _BIG, nullable=False, server_default="0"),
    sa.Column("successful_refreshes", _BIG, nullable=False, server_default="0"),
    sa.Column("failed_refreshes", _BIG, nullable=False, server_default="0"),
    sa.Column("total_rows_inserted", _BIG, nullable=False, server_default="0"),
    sa.Column("total_rows_updated", _BIG, nullable=False, server_default="0"),
    sa.Column("total_rows_deleted", _BIG, nullable=False, server_default="0"),
    sa.Column("completed_duration_ms", sa.Double, nullable=False, server_default="0"),
    sa.Column("newest_refresh_id", _BIG),
    sa.Column("newest_action", sa.Text),
    sa.Column("newest_status", sa.Text),
    sa.Column("newest_at", UtcTimestamp),
    sa.UniqueConstraint("schema_name", "name", name="ms_stream_tables_name"),
)

stages = sa.Table(
    "ms_stages",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _table_id(),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("is_public", sa.Boolean, nullable=False),
    sa.Column("version", _BIG),
    sa.Index("ms_stages_stream_table", "stream_table_id", "ordinal"),
)

dependencies = sa.Table(
    "ms_dependencies",
    metadata,
    _table_id(primary_key=True),
    sa.Column("source_kind", sa.Text, primary_key=True),
    sa.Column("source_name", sa.Text, primary_key=True),
    sa.Column("source_id", sa.Text, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("columns_used", _JSON, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Index("ms_dependencies_source", "source_name"),
)

refresh_history = sa.Table(
    "ms_refresh_history",
    metadata,
    sa.Column("refresh_id", _BIG, primary_key=True, autoincrement=False),
    _table_id(),
    sa.Column("data_timestamp", UtcTimestamp),
    sa.Column("start_time", UtcTimestamp, nullable=False),
    sa.Column("end_time", UtcTimestamp),
    sa.Column("action", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("initiated_by", sa.Text, nullable=False),
    sa.Column("rows_inserted", _BIG, nullable=False),
    sa.Column("rows_updated", _BIG, nullable=False),
    sa.Column("rows_deleted", _BIG, nullable=False),
    sa.Column("duration_ms", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("freshness_deadline", UtcTimestamp),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("repeats", sa.Integer, nullable=False, server_default="1"),
    sa.Index("ms_refresh_history_stream_table", "stream_table_id", "refresh_id"),
)

intents = sa.Table(
    "ms_intents",
    metadata,
    _table_id(primary_key=True),
    sa.Column("refresh_id", _BIG, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("data_timestamp", UtcTimestamp, nullable=False),
    sa.Column("old_frontier", _JSON, nullable=False),
    sa.Column("new_frontier", _JSON, nullable=False),
    sa.Column("base_frontier", _JSON, nullable=False),
    sa.Column("reinit_mark", sa.Integer, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
)

lake_objects = sa.Table(
    "ms_lake_objects",
    metadata,
    sa.Column("namespace", sa.Text, primary_key=True),  # RELATION or FUNCTION: a table and a view share names
    sa.Column("schema_name", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("location", sa.Text),
    sa.Column("provider", sa.Text),
    sa.Column("text", sa.Text),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
)

databases = sa.Table(
    "ms_databases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("cdc", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("system_identifier", sa.Text, nullable=False),  # unsigned, so too large for BIGINT
    sa.Column("timeline", sa.Integer, nullable=False),
    sa.Column("database_name", sa.Text, nullable=False),
    sa.Column("database_oid", _BIG, nullable=False),
    sa.Column("position", _JSON),
    sa.Column("reached_at", UtcTimestamp),
    sa.Column("last_tick", _BIG, nullable=False),
    sa.Column("open_tick", _JSON),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
)

captures = sa.Table(
    "ms_captures",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("database", sa.Text, sa.ForeignKey("ms_databases.name"), nullable=False),
    sa.Column("schema_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("oid", _BIG, nullable=False),
    sa.Column("columns", _JSON, nullable=False),
    sa.Column("key", _JSON, nullable=False),
    sa.Column("shape", sa.Text, nullable=False),
    sa.Column("filenodes", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("version", _BIG),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
    sa.UniqueConstraint("database", "schema_name", "table_name", name="ms_captures_table"),
)

servings = sa.Table(
    "ms_servings",
    metadata,
    _table_id(primary_key=True),
    sa.Column("database", sa.Text, sa.ForeignKey("ms_databases.name"), nullable=False),
    sa.Column("schema_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", UtcTimestamp, nullable=False),
    sa.Column("updated_at", UtcTimestamp, nullable=False),
    sa.UniqueConstraint("database", "schema_name", "table_name", name="ms_servings_table"),
)

events = sa.Table(
    "ms_events",
    metadata,
    sa.Column("event_id", _BIG, primary_key=True, autoincrement=True),
    sa.Column("at", UtcTimestamp, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("stream_table", sa.Text),
    sa.Column("schema_name", sa.Text),
    sa.Column("database", sa.Text),
    sa.Column("fields", _JSON, nullable=False),
    sa.Index("ms_events_at", "at"),
    sqlite_autoincrement=True,
)
