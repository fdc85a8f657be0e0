"""That a database has moved, or does not, and why, is reported once when it happens, and shown as long as it is so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import millstream
from kits.capture import DriverOnly, Kit, advance
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.capture import Captures
from millstream.catalog.attached import CaptureMode
from millstream.lake.locks import locks_for
from millstream.notices import CaptureWarning
from millstream.settings import Settings

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres

MOVED = "shop is captured from its WAL from now on"
BACK, STAYS = "shop is captured by triggers again", "shop stays on triggers"


def ticks(kit: Kit, writer: Writer, count: int = 3) -> None:
    for _ in range(count):
        writer.execute(BOTH)
        kit.tick()


def reported(kit: Kit) -> list[str]:
    """What was said of the way, since it was asked last."""
    found = [sentence for sentence in kit.said if sentence.startswith((MOVED, BACK, STAYS))]
    kit.said.clear()
    return found


def hindrances(kit: Kit) -> set[str | None]:
    with millstream.connect(kit.root) as ms:
        return {source.hindrance for source in ms.sources()}


def test_there_and_back_and_there(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    ticks(kit, writer)
    assert reported(kit) == [MOVED]
    assert hindrances(kit) == {None}
    kit.read("rc", "c", "k", "v")  # no key, and not REPLICA IDENTITY FULL
    until(kit, CaptureMode.TRIGGER, writer, "a", "b", "c")
    ticks(kit, writer)
    (said,) = reported(kit)
    assert said.startswith(f"{BACK}: public.c: ")
    assert kit.warned == [said]
    (shown,) = hindrances(kit)
    assert f"{BACK}: {shown}" == said
    writer.execute("ALTER TABLE c REPLICA IDENTITY FULL")
    until(kit, CaptureMode.WAL, writer, "a", "b", "c")
    assert reported(kit) == [MOVED]
    assert hindrances(kit) == {None}
    assert kit.warned == [said]


def test_it_stays_on_triggers_from_the_start(kit: Kit, writer: Writer) -> None:
    kit.read("rc", "c", "k", "v")
    ticks(kit, writer)
    (said,) = reported(kit)
    assert said.startswith(f"{STAYS}: public.c: ")
    assert kit.warned == [], "nothing was lost"
    assert hindrances(kit) == {said.removeprefix(f"{STAYS}: ")}
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    ticks(kit, writer)
    assert reported(kit) == []
    assert hindrances(kit) == {None}, "triggers were requested"


def test_a_slot_that_takes_too_long(kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = datetime.now(UTC)
    monkeypatch.setattr(kit.captures, "_clock", lambda: clock)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO c VALUES (5, 5)")  # a slot is not complete before it ends
        ticks(kit, writer)
        assert reported(kit) == []
        clock += timedelta(days=1)
        ticks(kit, writer, 1)
        (said,) = reported(kit)
        assert said.startswith(f"{STAYS}: LOCK_TIMEOUT: ")
        assert kit.warned == [said]
        assert hindrances(kit) == {said.removeprefix(f"{STAYS}: ")}
        late.commit()


def test_a_lost_slot_is_a_warning_of_the_refresh(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    writer.execute(BOTH)
    settings, locks = Settings(), locks_for(kit.catalog, kit.root)
    workers, said = DriverOnly(settings), list[str]()
    tables = Captures(kit.root, kit.catalog, workers, locks, settings, lambda: datetime.now(UTC), said.append)  # type: ignore[arg-type]
    with pytest.warns(CaptureWarning, match=f"{BACK}: CAPTURE_LOST: .* the WAL is tried again at") as warned:
        advance(tables, {"shop.public.a"})
    assert len(warned) == 1
    assert len([sentence for sentence in said if BACK in sentence]) == 1
    tables.close()
    locks.close()
