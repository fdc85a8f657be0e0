"""The server crashes while a tick is at work: between what it reads, lands, records and lets the database forget.

Some commits are durable by then and some are not; some come while the tick is at work. After the restart mirrors are
what their tables are, and no tick has landed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, has_recaptured, killed_at, open_kit
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from millstream import Code, MillstreamError
from millstream.capture import mode_switch, tick
from millstream.capture.stages import clean_up
from millstream.capture.stages import read as read_stage
from millstream.catalog.attached import CaptureMode
from millstream.sources.postgres.triggers import buffer_changes
from millstream.testing.postgres_server import LOGICAL, Server

pytestmark = pytest.mark.postgres

Writer = psycopg.Connection[Any]
BOTH = "WITH x AS (UPDATE a SET v = v + 1) UPDATE b SET v = v + 1"


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server that loses nothing that it said was committed; some writers do not wait for that."""
    with Server({**LOGICAL, "wal_writer_delay": "10s"}) as server:
        yield server


def writing(shop: WalShop) -> Writer:
    return psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True)


@pytest.fixture
def shop(durable: Server) -> WalShop:
    shop = new_owned_wal_shop(durable)
    with writing(shop) as writer:
        for statement in (
            "CREATE TABLE a (k int PRIMARY KEY, v int)",
            "CREATE TABLE b (k int, v int)",
            "ALTER TABLE b REPLICA IDENTITY FULL",
            "INSERT INTO a VALUES (1, 10), (2, 20)",
            "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20)",
        ):
            writer.execute(statement)
    return shop


@pytest.fixture(params=[CaptureMode.TRIGGER, CaptureMode.WAL])
def kit(
    request: pytest.FixtureRequest, shop: WalShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kit]:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    cdc = "auto" if request.param is CaptureMode.WAL else "trigger"
    with open_kit(tmp_path / "lake", shop.address, cdc=cdc) as opened, writing(shop) as writer:
        opened.read("ra", "a", "k", "v")
        opened.read("rb", "b", "k", "v")
        for _ in range(60):
            writer.execute(BOTH)
            opened.tick()
            if opened.database.mode is request.param:
                break
        assert opened.database.mode is request.param
        yield opened
        opened.forget("ra")
        opened.forget("rb")  # and with it the slot


def crash(shop: WalShop) -> None:
    """Write some more, and die."""
    writer, idle = writing(shop), writing(shop)
    idle.execute("BEGIN")
    idle.execute("INSERT INTO b VALUES (9000, 0)")
    writer.execute("SET synchronous_commit = off")  # a durable commit would make those before it durable, too
    writer.execute("INSERT INTO b VALUES (5, 1)")
    writer.execute(BOTH)
    shop.server.stop("immediate")
    writer.close()
    idle.close()


@pytest.mark.parametrize(
    "is_back_at_once", [True, pytest.param(False, marks=pytest.mark.long)], ids=["is back at once", "stays away"]
)
@pytest.mark.parametrize("step", ["land", "complete", "clean_up"])
def test_the_server_crashes_inside_a_tick(
    kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch, step: str, is_back_at_once: bool
) -> None:
    """Before what was read is landed, before what was landed is recorded, before it is forgotten in the database."""
    original, crashed = getattr(tick, step), list[str]()
    kit.said.clear()
    with writing(shop) as writer:
        writer.execute(BOTH)
        writer.execute("SET synchronous_commit = off")
        writer.execute("INSERT INTO a VALUES (100, 0)")

    def crashing(*arguments: Any) -> Any:
        if not crashed:
            crashed.append(step)
            crash(shop)
            if is_back_at_once:
                shop.server.start()
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(tick, step, crashing)
        if is_back_at_once:
            kit.tick()
        else:
            with pytest.raises(MillstreamError) as caught:
                kit.tick()
            assert caught.value.code is Code.DATABASE_UNREACHABLE
            shop.server.start()
    assert crashed
    with writing(shop) as writer:
        assert writer.execute("SELECT count(*) FROM a WHERE k = 100").fetchone() == (1,), "it was read, so it stays"
        assert writer.execute("SELECT count(*) FROM b WHERE k = 9000").fetchone() == (0,)
        for _ in range(3):
            kit.tick()
            kit.assert_exact(writer, "a", "b")
            writer.execute("INSERT INTO b VALUES (7, 7)")
            writer.execute(BOTH)
    kit.assert_nothing_twice()
    assert_not_replaced(kit)


def assert_not_replaced(kit: Kit) -> None:
    """Nothing that was read is gone, so nobody has to start over."""
    assert not any("with its mirror" in said for said in kit.said)
    assert not has_recaptured(kit.said)
    assert [t.reinit_reason for t in kit.catalog.list()] == [None, None]


STEPS = {
    "before the mark": (read_stage, "record_mark", False),
    "after the mark": (read_stage, "record_mark", True),
    "before the trim": (buffer_changes, "record_trims", False),
    "during the trim": (buffer_changes, "_trim", False),
    "between two trims": (buffer_changes, "_trim", True),
    "after the trim": (tick, "clean_up", True),
}


@pytest.mark.parametrize(
    ("kit", "step"),
    [*((CaptureMode.TRIGGER, step) for step in STEPS), (CaptureMode.WAL, "before the trim")],
    indirect=["kit"],
)
def test_the_server_crashes_while_buffers_are_trimmed(
    kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The tick goes on after it, or a later one does; in between the application writes as much as before."""
    owner, name, is_after = STEPS[step]
    if kit.database.mode is CaptureMode.WAL and owner is not tick:
        owner, name = clean_up, "advance"
    original, crashed = getattr(owner, name), list[str]()

    def crashing(*arguments: Any) -> Any:
        if crashed:
            return original(*arguments)
        crashed.append(step)
        result = original(*arguments) if is_after else None
        crash(shop)
        shop.server.start()
        with writing(shop) as writer:
            for _ in range(5):
                writer.execute(BOTH)
        return result if is_after else original(*arguments)

    kit.said.clear()
    with writing(shop) as writer:
        writer.execute(BOTH)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crashing)
        kit.tick()
    assert crashed
    with writing(shop) as writer:
        for _ in range(3):
            kit.tick()
            kit.assert_exact(writer, "a", "b")
            writer.execute(BOTH)
    kit.assert_nothing_twice()
    assert_not_replaced(kit)


def test_the_server_crashes_once_changes_were_read(kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were not durable yet, and are gone: a connection of later must not make them count as read."""
    name = "read_slot" if kit.database.mode is CaptureMode.WAL else "read_buffers"
    read, crashed = getattr(read_stage, name), list[str]()
    with writing(shop) as writer:
        writer.execute(BOTH)
    idle, writer = writing(shop), writing(shop)
    idle.execute("BEGIN")
    idle.execute("INSERT INTO b VALUES (9000, 0)")
    writer.execute("SET synchronous_commit = off")
    for key in (100, 101, 102):
        writer.execute("INSERT INTO a VALUES (%s, 0)", [key])
    kit.captures._connections.close()

    def late(*arguments: Any) -> Any:
        reading = read(*arguments)
        if not crashed:
            crashed.append(name)
            shop.server.stop("immediate")
            shop.server.start()
            with writing(shop) as again:
                for key in (200, 201, 202):
                    again.execute("INSERT INTO a VALUES (%s, 0)", [key])
        return reading

    with monkeypatch.context() as patched:
        patched.setattr(read_stage, name, late)
        kit.tick()
    assert crashed
    for left in (idle, writer):
        left.close()
    with writing(shop) as again:
        for _ in range(2):
            kit.assert_exact(again, "a", "b")
            again.execute(BOTH)
            kit.tick()
    kit.assert_nothing_twice()


def test_a_trim_that_a_killed_process_owes(kit: Kit, shop: WalShop) -> None:
    """Later ticks have nothing to trim in that buffer, and a server that is restarted does not count as put back."""
    with writing(shop) as writer:
        writer.execute(BOTH)
    point = "advance" if kit.database.mode is CaptureMode.WAL else "trim"
    killed_at(kit.root, shop.address, (f"millstream.capture.stages.clean_up:{point}", "before", 1), "tick")
    kit.said.clear()
    for mode in ("fast", "immediate"):
        shop.server.stop(mode)
        shop.server.start()
        with writing(shop) as writer:
            writer.execute("UPDATE b SET v = v + 1")
            kit.tick()
            kit.assert_exact(writer, "a", "b")
    assert_not_replaced(kit)


@pytest.mark.parametrize("kit", [CaptureMode.TRIGGER], indirect=True)
@pytest.mark.parametrize("is_flushed", [True, False], ids=["flushed", "not flushed"])
def test_the_server_crashes_after_a_tick_that_had_nothing_to_land(
    kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    """Its position counts transactions as read, and their ids must not be used again: so such a tick flushes the WAL.

    Without that, changes with the ids of lost transactions count as read.
    """
    with writing(shop) as writer:
        writer.execute("CREATE TABLE other (k int)")
        kit.tick()
        writer.execute("SET synchronous_commit = off")
        for _ in range(20):
            writer.execute("INSERT INTO other VALUES (1)")
        with monkeypatch.context() as patched:
            if not is_flushed:
                patched.setattr(read_stage, "flush_wal", lambda connection: 0)
            kit.tick()
        shop.server.stop("immediate")
    shop.server.start()
    with writing(shop) as writer:
        for key in range(1000, 1030):
            writer.execute("INSERT INTO a VALUES (%s, 0)", [key])
        kit.tick()
        if is_flushed:
            kit.assert_exact(writer, "a", "b")
            assert_not_replaced(kit)
        else:
            with pytest.raises(AssertionError, match="missing"):
                kit.assert_exact(writer, "a", "b")


@pytest.mark.parametrize("kit", [CaptureMode.TRIGGER], indirect=True)
def test_a_mark_makes_durable_what_is_landed_by_triggers(
    kit: Kit, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is written to the WAL beside the mark's own commit."""
    flushed = list[object]()
    monkeypatch.setattr(read_stage, "flush_wal", flushed.append)
    with writing(shop) as writer:
        writer.execute(BOTH)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
    assert flushed == []
