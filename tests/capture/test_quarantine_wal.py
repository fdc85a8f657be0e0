"""Tables that cannot be brought forward while their database is read from its WAL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kits.capture import Kit, killed_at, quarantine_code
from kits.quarantine import Fault, refused, restless, run
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream import Code
from millstream.capture import installation
from millstream.catalog.attached import CaptureMode
from millstream.postgres import pool
from millstream.postgres.connection import Connection
from millstream.sources.postgres.load import exported_snapshot
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo

__all__ = ["always_surveyed", "kit", "restless", "shop", "writer"]
pytestmark = pytest.mark.postgres


FAULTS = {
    "value": Fault(Code.VALUE_UNSUPPORTED, "INSERT INTO d VALUES (100, 'infinity')", "DELETE FROM d WHERE k = 100"),
    "row security": Fault(
        Code.PRIVILEGE_MISSING,
        "ALTER TABLE d ENABLE ROW LEVEL SECURITY; ALTER TABLE d FORCE ROW LEVEL SECURITY; VACUUM FULL d",
        "ALTER TABLE d DISABLE ROW LEVEL SECURITY",
    ),
    "another table": Fault(
        Code.PRIVILEGE_MISSING,
        "DROP TABLE d; CREATE TABLE d (k int PRIMARY KEY, d date); INSERT INTO d VALUES (1, '2024-01-01'); "
        f"REVOKE ALL ON d FROM {REPLICATOR}",
        f"GRANT ALL ON d TO {REPLICATOR}",
    ),
    "right to read": Fault(
        Code.PRIVILEGE_MISSING,
        f"VACUUM FULL d; REVOKE SELECT ON d FROM {REPLICATOR}",
        f"GRANT SELECT ON d TO {REPLICATOR}",
    ),
}


@pytest.fixture
def read(kit: Kit, writer: Writer) -> Kit:
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, d date)")
    writer.execute("INSERT INTO d SELECT i, '2024-01-01' FROM generate_series(1, 20) i")
    kit.read("rd", "d", "k", "d")
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    kit.tick()
    return kit


def confirmed(writer: Writer) -> str:
    row = writer.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    assert row is not None
    return str(row[0])


def check_others_go_on(kit: Kit, writer: Writer, fault: Fault) -> None:
    version = kit.capture("d").version
    run(writer, fault.made)
    kept = confirmed(writer)
    for _ in range(3):
        writer.execute(BOTH)
        assert kit.tick("a", "b").keys() == {"shop.public.a", "shop.public.b"}
        kit.assert_exact(writer, "a", "b")
        assert confirmed(writer) != kept, "the WAL is not kept for it"
        kept = confirmed(writer)
        assert refused(kit, "d").code is fault.code
        assert kit.capture("d").version == version
        assert quarantine_code(kit.capture("d")) == fault.code
        assert kit.database.mode is CaptureMode.WAL
    triggered = writer.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchone()
    assert triggered == (0,)
    run(writer, fault.cleared)
    writer.execute("UPDATE d SET d = '2024-03-03'")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    assert (kit.capture("d").state.quarantine, kit.capture("d").state.position) == (None, None)
    for _ in range(2):
        writer.execute("UPDATE d SET d = d + 1")
        writer.execute(BOTH)
        kit.tick()
        kit.assert_exact(writer, "a", "b", "d")
    assert kit.database.mode is CaptureMode.WAL
    kit.assert_nothing_twice()


@pytest.mark.parametrize("name", FAULTS)
def test_others_go_on(read: Kit, writer: Writer, name: str) -> None:
    check_others_go_on(read, writer, FAULTS[name])


def test_a_table_that_the_wal_must_give_and_does_not(read: Kit, writer: Writer) -> None:
    read.catalog.put_database(replace(read.database, cdc="wal"))
    fault = Fault(
        Code.DATABASE_UNFIT, "ALTER TABLE d REPLICA IDENTITY NOTHING", "ALTER TABLE d REPLICA IDENTITY DEFAULT"
    )
    check_others_go_on(read, writer, fault)


def test_a_table_that_neither_way_gives(read: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not go back to triggers for it."""
    read.forget("rd")
    for statement in (
        "DROP TABLE d",
        "CREATE TABLE d (k int PRIMARY KEY, d date) PARTITION BY LIST (k)",
        "CREATE TABLE d1 PARTITION OF d FOR VALUES IN (1)",
        "CREATE TABLE d2 PARTITION OF d FOR VALUES IN (2)",
        "INSERT INTO d VALUES (1, '2024-01-01'), (2, '2024-01-01')",
    ):
        writer.execute(statement)
    read.read("rd", "d", "k", "d")
    until(read, CaptureMode.WAL, writer, "a", "b", "d")
    read.tick()
    fault = Fault(Code.SOURCE_NO_CHANGE_FEED, "ALTER TABLE d1 SET UNLOGGED", "ALTER TABLE d1 SET LOGGED")
    real, tried = installation.install, set[str]()

    def install(connection: Connection, relation: Relation, *more: Any) -> BufferInfo:
        tried.add(relation.name)
        return real(connection, relation, *more)

    monkeypatch.setattr(installation, "install", install)
    check_others_go_on(read, writer, fault)
    assert tried == {"d"}


def test_a_table_that_somebody_holds(read: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL 18 itself waits for it before it reports what is published, so that all wait, but not for ever."""
    monkeypatch.setattr(exported_snapshot, "_LOCK_TIMEOUT", "200ms")
    monkeypatch.setattr(pool, "_LOCK_TIMEOUT", "200ms")
    read.captures._connections.close()
    writer.execute("VACUUM FULL d")
    with shop.server.superuser(shop.name) as holder, holder.transaction():
        holder.execute("LOCK TABLE d IN ACCESS EXCLUSIVE MODE")
        writer.execute(BOTH)
        if writer.info.server_version >= 180_000:
            assert refused(read, "a").code is Code.LOCK_TIMEOUT
        assert refused(read, "d").code is Code.LOCK_TIMEOUT
    read.tick()
    read.assert_exact(writer, "a", "b", "d")


def test_the_database_moves_to_its_wal_and_back_without_it(kit: Kit, writer: Writer) -> None:
    """A table that was left before is neither published nor has triggers, and gets what it needs when it can."""
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, d date)")
    kit.read("rd", "d", "k", "d")
    kit.tick()
    writer.execute("INSERT INTO d VALUES (100, 'infinity')")
    kit.tick()
    assert kit.capture("d").state.quarantine is not None
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute(BOTH)
    kit.tick()
    assert writer.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchone() == (0,)
    writer.execute("UPDATE d SET d = '2024-01-01'")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    writer.execute("UPDATE d SET d = 'infinity'")
    kit.tick()
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    until(kit, CaptureMode.TRIGGER, writer, "a", "b")
    writer.execute("UPDATE d SET d = '2024-02-02'")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    writer.execute("UPDATE d SET d = '2024-02-03'")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")


def test_a_slot_that_is_lost_while_a_table_is_left(read: Kit, writer: Writer) -> None:
    writer.execute("INSERT INTO d VALUES (100, 'infinity')")
    read.tick("a")
    writer.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    writer.execute(BOTH)
    read.tick("a")
    read.assert_exact(writer, "a", "b")
    assert refused(read, "d").code is Code.VALUE_UNSUPPORTED
    writer.execute("DELETE FROM d WHERE k = 100")
    for _ in range(2):
        writer.execute("UPDATE d SET d = d + 1")
        read.tick("a")
        read.assert_exact(writer, "a", "b", "d")


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("value", ("put_database", "after", 1)),
        ("value", ("put_database", "after", 2)),
        ("another table", ("put_database", "after", 1)),
    ],
    ids=str,
)
def test_a_tick_that_leaves_a_table_and_is_killed(
    read: Kit, writer: Writer, shop: WalShop, name: str, point: tuple[str, str, int]
) -> None:
    fault = FAULTS[name]
    run(writer, fault.made)
    writer.execute(BOTH)
    killed_at(read.root, shop.address, point, "tick", "a")
    writer.execute(BOTH)
    read.tick("a")
    read.assert_exact(writer, "a", "b")
    assert refused(read, "d").code is fault.code
    run(writer, fault.cleared)
    writer.execute("UPDATE d SET d = '2024-03-03'")
    read.tick()
    read.assert_exact(writer, "a", "b", "d")
    read.assert_nothing_twice()
