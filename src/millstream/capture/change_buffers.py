"""Converts buffers between the catalog's records and the arguments of the PostgreSQL modules."""

from __future__ import annotations

from dataclasses import replace

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.capture_state import BufferState
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo, BufferSettings


def buffer_settings(database: AttachedDatabase, catalog: Catalog) -> BufferSettings:
    """The settings of a database's buffers."""
    return BufferSettings(schema=database.state.buffer_schema, lake=catalog.lake_id())


def buffer_of(capture: Capture) -> BufferInfo:
    """The buffer of a capture that has one."""
    kept = capture.state.buffer
    assert kept is not None, "triggers capture the table"
    return BufferInfo(
        schema=kept.schema,
        oid=capture.oid,
        columns=kept.columns,
        by_row=kept.by_row,
        leaves=kept.leaves,
        is_always=kept.is_always,
        state=kept.state,
    )


def with_buffer(capture: Capture, buffer: BufferInfo) -> Capture:
    """The capture with its current buffer."""
    kept = BufferState(
        schema=buffer.schema,
        columns=buffer.columns,
        by_row=buffer.by_row,
        leaves=buffer.leaves,
        is_always=buffer.is_always,
        state=buffer.state,
    )
    return replace(capture, oid=buffer.oid, state=replace(capture.state, buffer=kept))


def without_buffer(capture: Capture) -> Capture:
    """The capture without a buffer."""
    return replace(capture, state=replace(capture.state, buffer=None))


def columns_made_for(capture: Capture) -> str:
    """The fingerprint of the columns that the capture's buffer was made for."""
    assert capture.state.buffer is not None
    return capture.state.buffer.made_for or capture.shape


def with_buffer_for(capture: Capture, shape: str) -> Capture:
    """The capture, its buffer recorded as made for columns that the mirror has not been compared with yet."""
    assert capture.state.buffer is not None
    return replace(capture, state=replace(capture.state, buffer=replace(capture.state.buffer, made_for=shape)))
