"""A published table whose UPDATE and DELETE PostgreSQL refuses, because nothing identifies its old rows any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

import millstream
from kits.capture import Kit, killed_at, quarantine_code
from kits.quarantine import restless
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream.capture import installation
from millstream.catalog.attached import CaptureMode
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings

__all__ = ["always_surveyed", "kit", "restless", "shop", "writer"]
pytestmark = pytest.mark.postgres

NOTHING = "ALTER TABLE d REPLICA IDENTITY NOTHING"
UPDATE = "UPDATE d SET v = v + 1"
PLAIN = ("CREATE TABLE d (k int PRIMARY KEY, v int)",)
INDEXED = (
    "CREATE TABLE d (k int NOT NULL, v int)",
    "CREATE UNIQUE INDEX d_i ON d (k)",
    "ALTER TABLE d REPLICA IDENTITY USING INDEX d_i",
)
WHOLE = ("CREATE TABLE d (k int, v int)", "ALTER TABLE d REPLICA IDENTITY FULL")
PARTITIONED = (
    "CREATE TABLE d (k int PRIMARY KEY, v int) PARTITION BY RANGE (k)",
    "CREATE TABLE d1 PARTITION OF d FOR VALUES FROM (1) TO (3)",
    "CREATE TABLE d2 PARTITION OF d FOR VALUES FROM (3) TO (50)",
)
FAULTS = {
    "identity of nothing": (PLAIN, NOTHING),
    "primary key dropped": (PLAIN, "ALTER TABLE d DROP CONSTRAINT d_pkey"),
    "primary key that is checked late": (
        PLAIN,
        "ALTER TABLE d DROP CONSTRAINT d_pkey, ADD PRIMARY KEY (k) DEFERRABLE",
    ),
    "index dropped": (INDEXED, "DROP INDEX d_i"),
    "no index chosen": (INDEXED, "ALTER TABLE d REPLICA IDENTITY DEFAULT"),
    "virtual column": (WHOLE, "ALTER TABLE d ADD COLUMN w int GENERATED ALWAYS AS (v * 2) VIRTUAL"),
    "a partition's identity": (PARTITIONED, "ALTER TABLE d2 REPLICA IDENTITY NOTHING"),
    "key of all partitions": (PARTITIONED, "ALTER TABLE d DROP CONSTRAINT d_pkey"),
    "new partition": (
        PARTITIONED,
        "CREATE TABLE d3 (k int PRIMARY KEY, v int); ALTER TABLE d3 REPLICA IDENTITY NOTHING; "
        "INSERT INTO d3 VALUES (60, 6); ALTER TABLE d ATTACH PARTITION d3 FOR VALUES FROM (50) TO (99)",
    ),
}


def read_d(kit: Kit, writer: Writer, made: tuple[str, ...] = PLAIN) -> None:
    for statement in (*made, "INSERT INTO d SELECT i, i FROM generate_series(1, 20) i"):
        writer.execute(statement)
    kit.read("rd", "d", "k", "v")


def is_refused(writer: Writer) -> bool:
    """Whether the application's own statement fails, which writes nothing then."""
    try:
        writer.execute(UPDATE)
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return True
    except psycopg.errors.InvalidColumnReference:  # of a virtual column
        return True
    return False


def make(writer: Writer, statements: str) -> None:
    for statement in statements.split("; "):
        writer.execute(statement)
    assert is_refused(writer)


def published(writer: Writer) -> set[str]:
    return {
        name for (name,) in writer.execute("SELECT relname FROM pg_publication_rel JOIN pg_class c ON c.oid = prrelid")
    }


def assert_goes_on(kit: Kit, writer: Writer) -> None:
    for _ in range(4):
        for statement in (UPDATE, "DELETE FROM d WHERE k = (SELECT max(k) FROM d)", BOTH):
            writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b", "d")
    kit.assert_nothing_twice()


@pytest.mark.parametrize("name", FAULTS)
def test_the_next_tick_lets_the_application_write(kit: Kit, writer: Writer, name: str) -> None:
    made, fault = FAULTS[name]
    read_d(kit, writer, made)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    kit.tick()
    make(writer, fault)
    kit.tick()
    assert not is_refused(writer)
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    assert_goes_on(kit, writer)
    assert kit.database.mode is CaptureMode.TRIGGER
    assert "public.d" in (kit.database.state.hindered or "")


def test_it_comes_back_once_it_has_an_identity(kit: Kit, writer: Writer) -> None:
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    make(writer, NOTHING)
    kit.tick()
    writer.execute("ALTER TABLE d REPLICA IDENTITY DEFAULT")
    assert_goes_on(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    assert published(writer) == {"a", "b", "d"}


def test_an_index_that_is_invalid(kit: Kit, writer: Writer, shop: WalShop) -> None:
    read_d(kit, writer, INDEXED)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.d_i'::regclass")
    writer.close()
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as again:
        assert is_refused(again)
        kit.tick()
        assert not is_refused(again)
        assert_goes_on(kit, again)


def test_a_database_that_is_to_be_read_from_its_wal_alone(kit: Kit, writer: Writer) -> None:
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    kit.catalog.put_database(replace(kit.database, cdc="wal"))
    make(writer, NOTHING)
    kit.tick()
    assert not is_refused(writer)
    assert quarantine_code(kit.capture("d")) == "DATABASE_UNFIT"
    assert kit.database.mode is CaptureMode.WAL
    for _ in range(2):
        writer.execute(BOTH)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        assert not is_refused(writer)
    writer.execute("ALTER TABLE d REPLICA IDENTITY DEFAULT")
    assert_goes_on(kit, writer)
    assert kit.database.mode is CaptureMode.WAL


@contextmanager
def a_long_transaction(shop: WalShop) -> Iterator[None]:
    """No slot becomes complete as long as it lasts."""
    with psycopg.connect(shop.server.url(shop.name)) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield


@pytest.mark.parametrize("cdc", ["auto", "trigger", "wal"])
def test_while_the_database_moves_to_its_wal(kit: Kit, writer: Writer, shop: WalShop, cdc: str) -> None:
    read_d(kit, writer)
    with a_long_transaction(shop):
        until(kit, CaptureMode.TRANSITIONING, writer, "a", "b", "d")
        assert published(writer) == {"a", "b", "d"}
        kit.catalog.put_database(replace(kit.database, cdc=cdc))
        make(writer, NOTHING)
        kit.tick()
        assert not is_refused(writer)
    if cdc != "wal":
        assert_goes_on(kit, writer)


def test_after_a_move_to_the_wal_was_given_up(kit: Kit, writer: Writer, shop: WalShop) -> None:
    read_d(kit, writer)
    with a_long_transaction(shop):
        until(kit, CaptureMode.TRANSITIONING, writer, "a", "b", "d")
        kit.catalog.put_database(replace(kit.database, cdc="trigger"))
        kit.tick()
        assert kit.database.mode is CaptureMode.TRIGGER
        writer.execute(NOTHING)
        kit.tick()
        assert not is_refused(writer)
    assert_goes_on(kit, writer)


def test_a_publication_that_could_not_be_dropped_with_its_slot(kit: Kit, writer: Writer, shop: WalShop) -> None:
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    ((name,),) = writer.execute("SELECT pubname FROM pg_publication").fetchall()
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(f"ALTER ROLE {REPLICATOR} NOREPLICATION")
        try:
            writer.execute(f"ALTER PUBLICATION {name} DROP TABLE b")  # changes are missing, so the slot is left
            kit.tick()
            assert kit.database.mode is CaptureMode.TRIGGER
            make(writer, NOTHING)
            kit.tick()
            assert not is_refused(writer)
            assert_goes_on(kit, writer)
        finally:
            superuser.execute(f"ALTER ROLE {REPLICATOR} REPLICATION")


def test_a_lock_in_the_way_is_tried_for_again_though_nothing_was_written(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BufferSettings(lake=kit.catalog.lake_id(), patience_seconds=0.2)
    monkeypatch.setattr(installation, "buffer_settings", lambda *_: settings)
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    make(writer, NOTHING)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as other:
        other.execute("LOCK TABLE d IN SHARE UPDATE EXCLUSIVE MODE")
        kit.tick()
        assert is_refused(writer)
    kit.tick()
    assert not is_refused(writer)
    assert_goes_on(kit, writer)


POINTS = [
    ("put_database", "after", 1),
    ("millstream.capture.refused_writes:unpublish", "before", 1),
    ("millstream.capture.refused_writes:unpublish", "after", 1),
    ("millstream.capture.installation:install", "after", 1),
    ("apply", "after", 1),
    ("put_database", "before", 3),
]


@pytest.mark.parametrize("point", POINTS, ids=lambda p: f"{p[1]} {p[0]} {p[2]}")
def test_a_tick_that_is_killed_meanwhile(kit: Kit, writer: Writer, shop: WalShop, point: tuple[str, str, int]) -> None:
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    make(writer, NOTHING)
    writer.execute("INSERT INTO d VALUES (100, 1)")
    killed_at(kit.root, shop.address, point, "tick")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    assert not is_refused(writer)
    assert_goes_on(kit, writer)


def test_a_publication_of_the_owner_is_theirs_to_alter(kit: Kit, writer: Writer, shop: WalShop) -> None:
    read_d(kit, writer)
    until(kit, CaptureMode.WAL, writer, "a", "b", "d")
    ((name,),) = writer.execute("SELECT pubname FROM pg_publication").fetchall()
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(f"ALTER PUBLICATION {name} OWNER TO CURRENT_USER")
        make(writer, NOTHING)
        kit.tick()
        assert [w for w in kit.warned if f'ALTER PUBLICATION "{name}" DROP TABLE "public"."d"' in w]
        with millstream.connect(kit.root) as ms:
            assert {row.source_table: row.alert for row in ms.check_cdc_health()}["public.d"] == "writes_refused"
            superuser.execute(f"ALTER PUBLICATION {name} DROP TABLE public.d")
            assert "writes_refused" not in [row.alert for row in ms.check_cdc_health()]
    assert_goes_on(kit, writer)
