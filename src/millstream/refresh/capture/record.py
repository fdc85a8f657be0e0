"""What the catalog's record of a captured table holds beside its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millstream.catalog import Catalog
from millstream.catalog.attached import MISSING, STALE, AttachedDatabase, Capture
from millstream.naming import postgres_name
from millstream.sources.postgres.installed import BufferInfo, BufferSettings
from millstream.sources.postgres.types import MirrorColumn

BUFFER = "buffer"
"""Where its changes are collected."""
WHOLE = "whole"
"""Nothing records its changes; it is compared with its mirror whenever it is read."""
NOT_NULL = "not_null"
"""Which of its columns are never NULL."""
GUARDED = "guarded"
"""Of a database: whether it refuses DDL that changes captured columns."""
BUFFER_SCHEMA = "buffer_schema"
"""Of a database: where its buffers lie."""
_MADE_FOR = "made_for"


def columns_of(capture: Capture) -> tuple[MirrorColumn, ...]:
    """The mirror's columns."""
    table = postgres_name(capture.schema, capture.table)
    return tuple(MirrorColumn(*column, table=table) for column in capture.columns)


def buffer_of(capture: Capture) -> BufferInfo:
    """Where its changes are collected."""
    kept: Mapping[str, Any] = capture.details[BUFFER]
    return BufferInfo(
        schema=kept["schema"],
        oid=capture.oid,
        columns=tuple(kept["columns"]),
        by_row=kept["by_row"],
        leaves=tuple(kept["leaves"]),
        is_always=kept["is_always"],
        state=kept["state"],
    )


def with_buffer(capture: Capture, buffer: BufferInfo) -> Capture:
    """The capture with the buffer it has now."""
    kept = {
        "schema": buffer.schema,
        "columns": list(buffer.columns),
        "by_row": buffer.by_row,
        "leaves": list(buffer.leaves),
        "is_always": buffer.is_always,
        "state": buffer.state,
    }
    return replace(capture, oid=buffer.oid, details={**capture.details, BUFFER: kept})


def made_for(capture: Capture) -> str:
    """The fingerprint of the columns that its buffer was made for."""
    return str(capture.details[BUFFER].get(_MADE_FOR, capture.shape))


def with_buffer_for(capture: Capture, shape: str) -> Capture:
    """The capture, whose buffer was just made for columns that the mirror has yet to be compared with."""
    return replace(capture, details={**capture.details, BUFFER: {**capture.details[BUFFER], _MADE_FOR: shape}})


def buffer_settings(database: AttachedDatabase, catalog: Catalog) -> BufferSettings:
    """How the buffers of a database are kept."""
    return BufferSettings(schema=str(database.details[BUFFER_SCHEMA]), lake=catalog.lake_id())


def is_whole(capture: Capture) -> bool:
    """Whether nothing records its changes: a foreign table or materialized view."""
    return bool(capture.details.get(WHOLE))


def is_kept(capture: Capture) -> bool:
    """Whether its mirror is loaded and brought forward."""
    return capture.version is not None and not capture.details.get(STALE) and not capture.details.get(MISSING)
