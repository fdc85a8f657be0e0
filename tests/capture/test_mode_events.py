"""A switch of the capture mode is reported by events: when it begins, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kits.capture import Kit
from kits.wal_shops import WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.capture.backlog import BacklogLimits, backlog_events
from millstream.capture.change_readers import wal_of
from millstream.capture.mode_switch import wanted_as
from millstream.catalog.attached import CaptureMode
from millstream.events import EventName
from millstream.sources.postgres.wal.slot import drop_slot, slot_of, slot_state

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
MODES = (EventName.CDC_TRANSITION_STARTED, EventName.CDC_TRANSITION_COMPLETE, EventName.CDC_TRANSITION_FAILED)
TO_WAL = [("started", "TRIGGER", "TRANSITIONING"), ("complete", "TRANSITIONING", "WAL")]


def raised(kit: Kit) -> list[Mapping[str, Any]]:
    found = kit.catalog.events(limit=100, names=MODES)
    assert {e.database for e in found} <= {"shop"}
    assert {e.fields["slot_name"] for e in found} <= {slot_of(kit.catalog.lake_id(), "shop").name}
    return [{"event": e.event, **e.fields} for e in found]


def steps(kit: Kit) -> list[tuple[str, str, str]]:
    return [(e["event"].removeprefix("cdc_transition_"), e["old_mode"], e["new_mode"]) for e in raised(kit)]


def test_to_the_wal_and_back_on_request(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    assert steps(kit) == TO_WAL
    kit.catalog.put_database(wanted_as(kit.database, "trigger"))
    until(kit, CaptureMode.TRIGGER, writer, "a", "b")
    for _ in range(2):
        writer.execute(BOTH)
        kit.tick()
    assert steps(kit) == [*TO_WAL, ("complete", "WAL", "TRIGGER")]
    assert raised(kit)[-1]["reason"] is None


def test_a_slot_that_is_lost(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    with kit.captures._connections.visiting(kit.database) as connection:
        drop_slot(connection, slot_of(kit.catalog.lake_id(), "shop").name)
    writer.execute(BOTH)
    kit.tick()
    kit.assert_exact(writer, "a", "b")
    assert steps(kit)[2] == ("complete", "WAL", "TRIGGER")
    assert "slot" in raised(kit)[2]["reason"]


def test_a_switch_that_fails(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.TRANSITIONING, writer, "a", "b")
    writer.execute("ALTER TABLE b REPLICA IDENTITY NOTHING")
    for _ in range(20):
        if "failed" in {step[0] for step in steps(kit)}:
            break
        writer.execute("INSERT INTO b VALUES (3, 3)")
        kit.tick()
    assert steps(kit)[:2] == [TO_WAL[0], ("failed", "TRANSITIONING", "TRIGGER")]
    assert "public.b" in raised(kit)[1]["reason"]


def test_a_switch_that_is_no_longer_wanted(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.TRANSITIONING, writer, "a", "b")
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    writer.execute(BOTH)
    kit.tick()
    assert steps(kit) == [TO_WAL[0], ("failed", "TRANSITIONING", "TRIGGER")]
    assert raised(kit)[1]["reason"] == "the switch is no longer wanted"


def test_looks_alone_complete_a_switch(kit: Kit, writer: Writer) -> None:
    """No reader is ever due; somebody writes, so that older transactions end."""
    for _ in range(60):
        kit.captures.watch("shop")
        writer.execute(BOTH)
        if kit.database.mode is CaptureMode.WAL:
            break
    assert steps(kit) == TO_WAL
    with kit.captures._connections.visiting(kit.database) as connection:
        before = slot_state(connection, wal_of(kit.database).slot)
        kit.captures.watch("shop")
        after = slot_state(connection, wal_of(kit.database).slot)
    assert before is not None
    assert after is not None
    assert (after.confirmed_flush_lsn or 0) > (before.confirmed_flush_lsn or 0)
    kit.assert_exact(writer, "a", "b")


def test_wal_that_a_long_transaction_holds(kit: Kit, writer: Writer, shop: WalShop) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    limits = BacklogLimits(wal_bytes=1 << 20, buffer_rows=1)
    assert backlog_events("shop", kit.captures.backlog("shop", limits), frozenset(), limits, NOON)[0] == []
    with shop.owner() as other, other.transaction():
        other.execute("CREATE TABLE open (k int)")
        writer.execute("INSERT INTO c SELECT i, i FROM generate_series(1, 30000) i")
        kit.captures.watch("shop")
        [event], _ = backlog_events("shop", kit.captures.backlog("shop", limits), frozenset(), limits, NOON)
    assert event.event is EventName.SLOT_LAG_WARNING
    assert event.fields["slot_name"] == wal_of(kit.database).slot
    assert event.fields["retained_wal_bytes"] > 1 << 20
