"""The first tables."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection

_METADATA = sa.MetaData()
_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.JSON(none_as_null=True)
_MOMENT = sa.DateTime(timezone=True)


def _table_id(primary_key: bool = False) -> sa.Column[str]:
    reference = sa.ForeignKey("ms_stream_tables.id", ondelete="CASCADE")
    return sa.Column("stream_table_id", sa.Text, reference, nullable=False, primary_key=primary_key)


_LAKE = sa.Table(
    "ms_lake",
    _METADATA,
    sa.Column("only_row", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("lake_id", sa.Text, nullable=False),
    sa.Column("generation", _BIG, nullable=False),
    sa.Column("last_refresh_id", _BIG, nullable=False),
)

sa.Table(
    "ms_stream_tables",
    _METADATA,
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
    sa.Column("data_timestamp", _MOMENT),
    sa.Column("frontier", _JSON, nullable=False),
    sa.Column("base_frontier", _JSON, nullable=False),
    sa.Column("last_refresh_at", _MOMENT),
    sa.Column("consecutive_errors", sa.Integer, nullable=False),
    sa.Column("needs_reinit", sa.Boolean, nullable=False),
    sa.Column("reinit_reason", sa.Text),
    sa.Column("reinit_mark", sa.Integer, nullable=False),
    sa.Column("definition", _JSON, nullable=False),
    sa.Column("definition_version", sa.Integer, nullable=False),
    sa.Column("settings", _JSON, nullable=False),
    sa.Column("columns", _JSON, nullable=False),
    sa.Column("functions_used", _JSON, nullable=False),
    sa.Column("created_at", _MOMENT, nullable=False),
    sa.Column("updated_at", _MOMENT, nullable=False),
    sa.UniqueConstraint("schema_name", "name", name="ms_stream_tables_name"),
)

sa.Table(
    "ms_stages",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    _table_id(),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("is_public", sa.Boolean, nullable=False),
    sa.Column("version", _BIG),
    sa.Index("ms_stages_stream_table", "stream_table_id", "ordinal"),
)

sa.Table(
    "ms_dependencies",
    _METADATA,
    _table_id(primary_key=True),
    sa.Column("source_kind", sa.Text, primary_key=True),
    sa.Column("source_name", sa.Text, primary_key=True),
    sa.Column("source_id", sa.Text, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("columns_used", _JSON, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Index("ms_dependencies_source", "source_name"),
)

sa.Table(
    "ms_refresh_history",
    _METADATA,
    sa.Column("refresh_id", _BIG, primary_key=True, autoincrement=False),
    _table_id(),
    sa.Column("data_timestamp", _MOMENT),
    sa.Column("start_time", _MOMENT, nullable=False),
    sa.Column("end_time", _MOMENT),
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
    sa.Column("freshness_deadline", _MOMENT),
    sa.Column("details", _JSON, nullable=False),
    sa.Index("ms_refresh_history_stream_table", "stream_table_id", "refresh_id"),
)

sa.Table(
    "ms_intents",
    _METADATA,
    _table_id(primary_key=True),
    sa.Column("refresh_id", _BIG, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("data_timestamp", _MOMENT, nullable=False),
    sa.Column("old_frontier", _JSON, nullable=False),
    sa.Column("new_frontier", _JSON, nullable=False),
    sa.Column("base_frontier", _JSON, nullable=False),
    sa.Column("plan", _JSON, nullable=False),
    sa.Column("reinit_mark", sa.Integer, nullable=False),
    sa.Column("created_at", _MOMENT, nullable=False),
)

sa.Table(
    "ms_lake_objects",
    _METADATA,
    sa.Column("namespace", sa.Text, primary_key=True),  # RELATION or FUNCTION: a table and a view share names
    sa.Column("schema_name", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("location", sa.Text),
    sa.Column("provider", sa.Text),
    sa.Column("text", sa.Text),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", _MOMENT, nullable=False),
    sa.Column("updated_at", _MOMENT, nullable=False),
)


def upgrade(connection: Connection, _root: Path | None) -> None:
    """Create the tables, and the one row with the lake's id."""
    _METADATA.create_all(connection, checkfirst=False)
    first = {"only_row": 1, "lake_id": str(uuid.uuid4()), "generation": 0, "last_refresh_id": 0}
    connection.execute(sa.insert(_LAKE).values(first))
