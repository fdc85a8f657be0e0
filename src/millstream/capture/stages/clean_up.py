"""Removes landed changes and orphans from a database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from millstream.capture.change_buffers import buffer_of, buffer_settings
from millstream.capture.change_readers import Reading, slot_in
from millstream.capture.drift import Action, Decision, after_tick
from millstream.capture.installation import Installation
from millstream.capture.orphans import remove_orphans, with_orphans
from millstream.capture.tick_state import TickContext, TickState, quarantine_tables
from millstream.catalog.attached import CaptureMode
from millstream.sources.postgres.server.table_error import TableError
from millstream.sources.postgres.triggers.buffer_changes import trim
from millstream.sources.postgres.triggers.partition_owners import grant_to_partition_owners
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo
from millstream.sources.postgres.uninstall import buffered_rows
from millstream.sources.postgres.wal.slot import advance
from millstream.sources.postgres.wal.wal_position import WalPosition


def clean_up(
    context: TickContext, state: TickState, touched: Collection[str], reading: Reading, hindrance: str | None
) -> TickState:
    """Discard landed changes in the database, and take the next step of a mode switch.

    Args:
        touched: the captures whose mirrors were brought forward.
        hindrance: why a switch to the WAL has to be abandoned.
    """
    position = state.database.position
    assert position is not None
    if hindrance is not None:
        database = context.switch.abandon(context.catalog, context.connection, state.database, hindrance)
        state = replace(state, database=database)
    if state.database.mode is CaptureMode.WAL:
        advance(context.connection, slot_in(state.database), WalPosition.load(position).lsn)
        state = _settle(context, state, reading)
    else:
        trim(context.connection, _buffers(state, touched), position["snapshot"])
        trim_quarantined(context, state, position["snapshot"])
        _grant_to_partition_owners(context, state)
    database = remove_orphans(context.connection, context.catalog, state.database, context.progress)
    return replace(state, database=database)


def _settle(context: TickContext, state: TickState, reading: Reading) -> TickState:
    """Install or remove triggers.

    Tables that the WAL cannot provide come first: if triggers cannot capture them either, the others need no triggers.
    """
    followed = sorted(state.followed, key=lambda c: c.id not in reading.unfit)
    quarantined = [state.captures[id_] for id_ in state.quarantined]
    installation = Installation(context.connection, context.catalog, state.database)
    try:
        after, database = installation.settle(followed, quarantined, is_hindered=reading.hindrance is not None)
    except TableError as error:
        state = quarantine_tables(context, state, error)
        decision = Decision(Action.QUARANTINE)
        after = [
            after_tick(state.captures[id_], decision, state.database, is_landed=False, pending=None)
            for id_ in state.quarantined
        ]
        database = with_orphans(state.database)  # triggers may have been installed on the others
        context.catalog.put_database(database, captures=after)
    captures = {**state.captures, **{c.id: c for c in after}}
    return replace(state, database=database, captures=captures, recorded=captures)


def trim_quarantined(context: TickContext, state: TickState, snapshot: str) -> None:
    """Trim the buffers of quarantined tables, which will not be read; a buffer may be missing."""
    buffers = _buffers(state, state.quarantined)
    if buffers:
        settings = buffer_settings(state.database, context.catalog)
        waiting = buffered_rows(context.connection, settings, [b.oid for b in buffers])
        # Only if there are rows to delete: a trim is a transaction, and after it the next tick would not be idle.
        trim(context.connection, [b for b in buffers if waiting.get(b.oid)], snapshot)


def _buffers(state: TickState, capture_ids: Collection[str]) -> list[BufferInfo]:
    captures = [state.captures[id_] for id_ in capture_ids]
    return [buffer_of(c) for c in captures if c.state.buffer is not None]


def _grant_to_partition_owners(context: TickContext, state: TickState) -> None:
    by_row = [c.oid for c in state.followed if c.state.buffer is not None and c.state.buffer.by_row]
    if by_row:
        grant_to_partition_owners(context.connection, by_row, state.database.state.buffer_schema)
