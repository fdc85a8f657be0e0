"""Attached PostgreSQL databases, their captured tables and their served tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection

_METADATA = sa.MetaData()
_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.JSON(none_as_null=True)
_MOMENT = sa.DateTime(timezone=True)

# refers to a table of an earlier step
_STREAM_TABLES = sa.Table("ms_stream_tables", _METADATA, sa.Column("id", sa.Text, primary_key=True))

_DATABASES = sa.Table(
    "ms_databases",
    _METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("cdc", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("system_identifier", sa.Text, nullable=False),  # unsigned, so too large for BIGINT
    sa.Column("timeline", sa.Integer, nullable=False),
    sa.Column("database_name", sa.Text, nullable=False),
    sa.Column("database_oid", _BIG, nullable=False),
    sa.Column("position", _JSON),
    sa.Column("reached_at", _MOMENT),
    sa.Column("last_tick", _BIG, nullable=False),
    sa.Column("open_tick", _JSON),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", _MOMENT, nullable=False),
    sa.Column("updated_at", _MOMENT, nullable=False),
)

_CAPTURES = sa.Table(
    "ms_captures",
    _METADATA,
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
    sa.Column("created_at", _MOMENT, nullable=False),
    sa.Column("updated_at", _MOMENT, nullable=False),
    sa.UniqueConstraint("database", "schema_name", "table_name", name="ms_captures_table"),
)

_SERVINGS = sa.Table(
    "ms_servings",
    _METADATA,
    sa.Column(
        "stream_table_id",
        sa.Text,
        sa.ForeignKey("ms_stream_tables.id", ondelete="CASCADE"),
        nullable=False,
        primary_key=True,
    ),
    sa.Column("database", sa.Text, sa.ForeignKey("ms_databases.name"), nullable=False),
    sa.Column("schema_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("details", _JSON, nullable=False),
    sa.Column("created_at", _MOMENT, nullable=False),
    sa.Column("updated_at", _MOMENT, nullable=False),
    sa.UniqueConstraint("database", "schema_name", "table_name", name="ms_servings_table"),
)


def upgrade(connection: Connection, _root: Path | None) -> None:
    """Create the tables."""
    _METADATA.create_all(connection, tables=[_DATABASES, _CAPTURES, _SERVINGS], checkfirst=False)
