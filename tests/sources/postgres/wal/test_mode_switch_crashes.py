"""A process is killed at a step of a move to the WAL or back: others go on, nothing is lost, and no slot is left."""

from __future__ import annotations

import time
from dataclasses import replace

import psycopg
import pytest

from kits.capture import Kit, killed_at
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.catalog.attached import CaptureMode
from millstream.sources.postgres.wal.slot import slot_of, slot_state

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres

MOVE, SWITCH = "millstream.sources.postgres.wal.mode_switch", "millstream.capture.mode_switch"
CLEAN_UP, SOURCE, LEFT = (f"millstream.capture.{module}" for module in ("stages.clean_up", "installation", "orphans"))
Point = tuple[str, str, int]


def named(point: Point) -> str:
    return f"{point[1]} {point[0].rpartition(':')[2]} {point[2]}"


def slots(shop: WalShop) -> int:
    with shop.server.superuser(shop.name) as superuser:
        return superuser.execute("SELECT FROM pg_replication_slots WHERE database = current_database()").rowcount


def slot_is_made(kit: Kit, writer: Writer) -> bool:
    state = slot_state(writer, slot_of(kit.catalog.lake_id(), "shop").name)
    return state is not None and state.is_ready


def begun(kit: Kit, writer: Writer) -> None:
    """Recorded, and no slot yet."""
    writer.execute(BOTH)
    kit.tick()
    assert kit.database.mode is CaptureMode.TRANSITIONING
    assert not slot_is_made(kit, writer)


def made(kit: Kit, writer: Writer, shop: WalShop) -> None:
    """There is a slot, which is not recorded as complete."""
    begun(kit, writer)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as early:
        early.execute("INSERT INTO c VALUES (5, 5)")  # a slot is not complete before it ends
        writer.execute(BOTH)
        kit.tick()
    while not slot_is_made(kit, writer):
        time.sleep(0.01)
    kit.captures._switches.pop("shop").close()  # that process has ended
    assert (kit.database.state.transition or {})["complete"] is None


def returning(kit: Kit, writer: Writer) -> None:
    """The WAL is read, and triggers are wanted."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))


def installed(kit: Kit, writer: Writer) -> None:
    """The triggers are there again, and the WAL is read."""
    returning(kit, writer)
    writer.execute(BOTH)
    kit.tick()
    assert (kit.database.mode, kit.database.state.triggers_installed is not None) == (CaptureMode.WAL, True)


def goes_on(kit: Kit, writer: Writer, shop: WalShop, mode: CaptureMode) -> None:
    """Exact at each tick until the database is where it was going, and after that."""
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO b VALUES (50, 50)")
        writer.execute("INSERT INTO b VALUES (51, 51)")
        kit.tick()
        assert kit.mirrored("b")["(51, 51)"] == 1
        assert kit.mirrored("b")["(50, 50)"] == 0
        late.commit()
    until(kit, mode, writer, "a", "b")
    for statement in (BOTH, "DELETE FROM b WHERE k = 50", "UPDATE a SET k = k + 10"):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
    kit.assert_nothing_twice()
    assert slots(shop) == (mode is CaptureMode.WAL)
    assert not any("comparing" in sentence for sentence in kit.said), "no change was missed"
    kit.forget("ra")
    kit.forget("rb")
    assert slots(shop) == 0


@pytest.mark.parametrize(
    "point",
    [
        (f"{MOVE}:ensure_published", "after", 1),
        pytest.param((f"{SWITCH}:begin", "after", 1), marks=pytest.mark.long),
        ("put_database", "after", 1),
        pytest.param(("put_database", "before", 3), marks=pytest.mark.long),
    ],
    ids=named,
)
def test_when_it_begins(kit: Kit, writer: Writer, shop: WalShop, point: Point) -> None:
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    goes_on(kit, writer, shop, CaptureMode.WAL)


@pytest.mark.parametrize(
    "point",
    [
        (f"{MOVE}:SlotCreation", "after", 1),
        pytest.param(("put_database", "after", 1), marks=pytest.mark.long),
    ],
    ids=named,
)
def test_while_the_slot_is_made(kit: Kit, writer: Writer, shop: WalShop, point: Point) -> None:
    """The server does not notice that, and makes it to the end; so does a tick of another process wait for it."""
    begun(kit, writer)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as early:
        early.execute("INSERT INTO a VALUES (77, 77, '')")
        writer.execute(BOTH)
        killed_at(kit.root, shop.address, point, "tick")
        for _ in range(3):
            writer.execute(BOTH)
            kit.tick()
            kit.assert_exact(writer, "a", "b")
            assert kit.database.mode is CaptureMode.TRANSITIONING
        early.commit()
    goes_on(kit, writer, shop, CaptureMode.WAL)


@pytest.mark.parametrize(
    "point",
    [
        (f"{MOVE}:has_new_definitions", "before", 1),
        pytest.param(("put_database", "after", 1), marks=pytest.mark.long),
        pytest.param((f"{SWITCH}:wal_start_position", "after", 1), marks=pytest.mark.long),
        ("put_database", "before", 3),
        ("put_database", "after", 3),
        pytest.param((f"{CLEAN_UP}:advance", "after", 1), marks=pytest.mark.long),
        (f"{SOURCE}:remove", "after", 1),
    ],
    ids=named,
)
def test_between_the_slot_and_the_cut(kit: Kit, writer: Writer, shop: WalShop, point: Point) -> None:
    made(kit, writer, shop)
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    goes_on(kit, writer, shop, CaptureMode.WAL)


@pytest.mark.parametrize(
    "point",
    [
        (f"{SOURCE}:install", "after", 1),
        pytest.param((f"{SOURCE}:install", "after", 2), marks=pytest.mark.long),
        pytest.param(("put_database", "after", 3), marks=pytest.mark.long),
    ],
    ids=named,
)
def test_while_triggers_are_put_back(kit: Kit, writer: Writer, shop: WalShop, point: Point) -> None:
    returning(kit, writer)
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    goes_on(kit, writer, shop, CaptureMode.TRIGGER)


@pytest.mark.parametrize(
    "point",
    [
        ("put_database", "before", 2),
        ("put_database", "after", 2),
        pytest.param((f"{LEFT}:drop_slot_and_publication", "after", 1), marks=pytest.mark.long),
    ],
    ids=named,
)
def test_when_triggers_are_read_again(kit: Kit, writer: Writer, shop: WalShop, point: Point) -> None:
    installed(kit, writer)
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    goes_on(kit, writer, shop, CaptureMode.TRIGGER)
