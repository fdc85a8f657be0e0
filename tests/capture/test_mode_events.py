"""A switch of the capture mode is reported by events: when it begins, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kits.capture import Kit
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.capture.mode_switch import wanted_as
from millstream.catalog.attached import CaptureMode
from millstream.events import EventName
from millstream.sources.postgres.wal.slot import drop_slot, slot_of

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres

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
