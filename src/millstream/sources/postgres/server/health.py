"""The health of capture: the slot of each database, and each captured table."""

from __future__ import annotations

from collections.abc import Container, Sequence

from millstream.postgres.connection import Connection
from millstream.results import CdcHealth, SlotHealth
from millstream.sources.postgres.triggers.trigger_catalog import FIRES_ALWAYS, NEVER_FIRES, trigger_states
from millstream.sources.postgres.wal.lsn import print_lsn
from millstream.sources.postgres.wal.refused_writes import refused_writes
from millstream.sources.postgres.wal.slot import Slot, SlotState, slot_state

SLOT_MISSING = "replication_slot_missing"
SLOT_LOST = "replication_slot_lost"
LAG_EXCEEDED = "slot_lag_exceeds_threshold"
WAL_AT_RISK = "slot_wal_at_risk"
SOURCE_MISSING = "source_table_missing"
UNREACHABLE = "database_unreachable"
TRIGGERS_DISABLED = "capture_triggers_disabled"
REPLICA_UNSEEN = "replica_sessions_not_captured"
WRITES_REFUSED = "writes_refused"


def slot_health(connection: Connection, slot: Slot, mode: str, sources: Sequence[tuple[int, str]]) -> list[SlotHealth]:
    """The slot of a database, with the tables that are read from it; none in trigger mode.

    Args:
        mode: `TRIGGER`, `TRANSITIONING` or `WAL`.
        sources: oid and name of each captured table.
    """
    state = slot_state(connection, slot.name)
    if state is None and mode == "TRIGGER":
        return []
    return [
        SlotHealth(
            slot_name=slot.name,
            source_relids=tuple(oid for oid, _ in sources),
            sources=tuple(name for _, name in sources),
            active=state is not None and state.active,
            retained_wal_bytes=state.retained_bytes if state else None,
            wal_status=state.wal_status if state else "missing",
            restart_lsn=_printed(state.restart_lsn) if state else None,
            confirmed_lsn=_printed(state.confirmed_flush_lsn) if state else None,
            safe_wal_bytes=state.safe_wal_size if state else None,
            inactive_since=state.inactive_since if state else None,
            invalidation_reason=state.invalidation_reason if state else None,
        )
    ]


def check_cdc_health(
    connection: Connection,
    database: str,
    slot: Slot,
    mode: str,
    sources: Sequence[tuple[int, str]],
    lag_threshold_bytes: int,
    buffer_schema: str | None = None,
) -> list[CdcHealth]:
    """Each captured table of a database: how it is captured, how far behind its slot is, and what is wrong.

    Args:
        database: the name it is attached under.
        lag_threshold_bytes: how far the slot may be behind, or how much WAL it may keep, before there is an alert.
        buffer_schema: where the functions of its triggers are; None skips the triggers.
    """
    rows = connection.execute(
        "SELECT c.oid::bigint, n.nspname || '.' || c.relname FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s)",
        [[oid for oid, _ in sources]],
    ).fetchall()
    found: dict[int, str] = dict(rows)
    has_slot = mode != "TRIGGER"
    state = slot_state(connection, slot.name) if has_slot else None
    alert = slot_alert(state, mode, lag_threshold_bytes)
    is_triggered = buffer_schema is not None and mode != "WAL"
    fire = trigger_states(connection, [oid for oid, _ in sources], buffer_schema or "") if is_triggered else {}
    refused = {table.oid for table in refused_writes(connection, [slot.publication], [oid for oid, _ in sources])}
    return [
        CdcHealth(
            database=database,
            source_relid=oid,
            source_table=found.get(oid, name),
            cdc_mode=mode,
            slot_name=slot.name if has_slot else None,
            lag_bytes=state.lag_bytes if state else None,
            confirmed_lsn=_printed(state.confirmed_flush_lsn) if state else None,
            alert=_alert(oid, alert or trigger_alert(fire.get(oid, "")), found, refused),
        )
        for oid, name in sources
    ]


def _alert(oid: int, other: str | None, found: Container[int], refused: Container[int]) -> str | None:
    """What is wrong with a table, the worst thing first."""
    if oid not in found:
        return SOURCE_MISSING
    return WRITES_REFUSED if oid in refused else other


def unknown_slot(slot: Slot, mode: str, sources: Sequence[tuple[int, str]]) -> list[SlotHealth]:
    """As `slot_health`, for a database that cannot be reached."""
    if mode == "TRIGGER":
        return []
    return [
        SlotHealth(
            slot_name=slot.name,
            source_relids=tuple(oid for oid, _ in sources),
            sources=tuple(name for _, name in sources),
            active=False,
            retained_wal_bytes=None,
            wal_status="unreachable",
            restart_lsn=None,
            confirmed_lsn=None,
            safe_wal_bytes=None,
            inactive_since=None,
            invalidation_reason=None,
        )
    ]


def unknown_health(database: str, slot: Slot, mode: str, sources: Sequence[tuple[int, str]]) -> list[CdcHealth]:
    """As `check_cdc_health`, for a database that cannot be reached."""
    slot_name = slot.name if mode != "TRIGGER" else None
    return [CdcHealth(database, oid, name, mode, slot_name, None, None, UNREACHABLE) for oid, name in sources]


def slot_alert(state: SlotState | None, mode: str, lag_threshold_bytes: int) -> str | None:
    """What is wrong with a database's slot, the worst thing first."""
    if mode == "TRIGGER":
        return None
    if state is None:
        return SLOT_MISSING if mode == "WAL" else None  # a mode switch may not have created it yet
    if state.is_lost:
        return SLOT_LOST
    if state.wal_status == "unreserved" or (state.safe_wal_size is not None and state.safe_wal_size <= 0):
        return WAL_AT_RISK
    if max(state.lag_bytes or 0, state.retained_bytes or 0) > lag_threshold_bytes:
        return LAG_EXCEEDED
    return None


def trigger_alert(states: str) -> str | None:
    """What is wrong with the triggers of a table, given the different states they are in."""
    if set(states) & set(NEVER_FIRES):
        return TRIGGERS_DISABLED
    return REPLICA_UNSEEN if set(states) - {FIRES_ALWAYS} else None


def _printed(lsn: int | None) -> str | None:
    return print_lsn(lsn) if lsn is not None else None
