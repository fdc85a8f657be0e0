"""Partitions in a database that is captured by its WAL, which gives their changes as those of their parent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.shops import detach_halfway
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import Writer, always_surveyed, drop_slots, shop
from millstream import Code, MillstreamError
from millstream.catalog.attached import CaptureMode

__all__ = ["always_surveyed", "shop"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def writer(shop: WalShop) -> Iterator[Writer]:
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as connection:
        for statement in (
            "CREATE TABLE plain (id int PRIMARY KEY, v int)",
            "CREATE TABLE whole (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
            "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)",
            "INSERT INTO plain VALUES (1000, 1)",
            "INSERT INTO whole VALUES (1, 1)",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: WalShop, writer: Writer, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address, cdc="auto") as opened:
        yield opened
        drop_slots(shop)


def until(kit: Kit, mode: CaptureMode, writer: Writer, *tables: str) -> None:
    """Write and tick until the database is captured that way; exact after each tick."""
    for _ in range(60):
        if kit.database.mode is mode:
            return
        for table in tables:
            writer.execute(f"UPDATE {table} SET v = v + 1")
        kit.tick()
        kit.assert_exact(writer, *tables)
    raise AssertionError(f"{kit.database.mode} {kit.database.state}")


@pytest.mark.parametrize(("first", "second"), [("part", "whole"), ("whole", "part")])
def test_a_partition_and_its_parent(kit: Kit, writer: Writer, first: str, second: str) -> None:
    kit.read("one", first, "id", "v")
    kit.read("another", "plain", "id", "v")
    until(kit, CaptureMode.WAL, writer, first, "plain")
    kit.read("two", second, "id", "v")
    kit.tick()
    for n in range(2, 8):
        writer.execute("INSERT INTO whole VALUES (%s, 1)", [n])
        writer.execute("UPDATE part SET v = v + 10 WHERE id < 3")
        writer.execute("UPDATE plain SET v = v + 1")
        kit.tick()
        kit.assert_exact(writer, "part", "whole", "plain")
    assert kit.database.mode is CaptureMode.TRIGGER
    assert "the WAL reports its changes as those of public.whole" in (kit.database.state.hindered or "")
    kit.forget("two")
    until(kit, CaptureMode.WAL, writer, first, "plain")


def test_a_table_that_becomes_a_partition(kit: Kit, writer: Writer) -> None:
    kit.read("one", "whole", "id", "v")
    kit.read("two", "plain", "id", "v")
    until(kit, CaptureMode.WAL, writer, "whole", "plain")
    writer.execute("ALTER TABLE whole ATTACH PARTITION plain FOR VALUES FROM (1000) TO (2000)")
    for n in range(1001, 1007):
        writer.execute("INSERT INTO plain VALUES (%s, 1)", [n])
        writer.execute("UPDATE whole SET v = v + 1 WHERE id = 1000")
        kit.tick()
        kit.assert_exact(writer, "whole", "plain")
    assert kit.database.mode is CaptureMode.TRIGGER
    writer.execute("ALTER TABLE whole DETACH PARTITION plain")
    until(kit, CaptureMode.WAL, writer, "whole", "plain")


def test_a_partition_whose_parent_is_read_no_more_before_triggers_are_back(kit: Kit, writer: Writer) -> None:
    """What came as the parent's has left no trace, neither in the publication nor on the partition."""
    kit.read("one", "whole", "id", "v")
    kit.read("two", "plain", "id", "v")
    until(kit, CaptureMode.WAL, writer, "whole", "plain")
    writer.execute("ALTER TABLE whole ATTACH PARTITION plain FOR VALUES FROM (1000) TO (2000)")
    kit.tick()
    assert kit.database.mode is CaptureMode.WAL
    writer.execute("INSERT INTO plain VALUES (1001, 1)")
    kit.forget("one")
    for _ in range(4):
        writer.execute("UPDATE plain SET v = v + 1 WHERE id = 1000")
        kit.tick()
        kit.assert_exact(writer, "plain")


def test_a_parent_that_the_user_wants_by_the_wal_alone_is_refused(kit: Kit, writer: Writer) -> None:
    kit.read("one", "part", "id", "v")
    until(kit, CaptureMode.WAL, writer, "part")
    kit.catalog.put_database(replace(kit.database, cdc="wal"))
    with pytest.raises(MillstreamError) as error:
        kit.read("two", "whole", "id", "v")
    assert error.value.code is Code.DATABASE_UNFIT
    assert "read either public.part or public.whole" in (error.value.hint or "")
    writer.execute("UPDATE part SET v = 7")
    kit.tick()
    kit.assert_exact(writer, "part")
    assert kit.database.mode is CaptureMode.WAL


def test_a_partition_whose_detaching_was_interrupted(kit: Kit, writer: Writer, shop: WalShop) -> None:
    writer.execute("CREATE TABLE second PARTITION OF whole FOR VALUES FROM (100) TO (200)")
    writer.execute("INSERT INTO whole VALUES (101, 1)")
    kit.read("one", "whole", "id", "v")
    until(kit, CaptureMode.WAL, writer, "whole")
    detach_halfway(shop, writer, "whole", "second")
    for statement in (
        "INSERT INTO whole VALUES (2, 1)",
        "UPDATE second SET v = 7",
        "INSERT INTO second VALUES (102, 1)",
        "ALTER TABLE whole DETACH PARTITION second FINALIZE",
        "UPDATE whole SET v = v + 1",
    ):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "whole")
    assert kit.database.mode is CaptureMode.WAL


def test_partitions_that_come_later_can_be_written(kit: Kit, writer: Writer) -> None:
    """A published table without a key refuses UPDATE and DELETE, and a new partition has what its parent has."""
    writer.execute("CREATE TABLE keyless (id int, v int) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE keyless_1 PARTITION OF keyless FOR VALUES FROM (0) TO (100)")
    writer.execute("ALTER TABLE keyless_1 REPLICA IDENTITY FULL")
    writer.execute("INSERT INTO keyless VALUES (1, 1)")
    kit.read("one", "whole", "id", "v")
    kit.read("two", "keyless", "id", "v")
    for _ in range(8):
        writer.execute("WITH x AS (UPDATE whole SET v = v + 1) UPDATE keyless SET v = v + 1")
        kit.tick()
    assert kit.database.mode is CaptureMode.TRIGGER
    assert "public.keyless: it has no primary key" in (kit.database.state.hindered or "")
    writer.execute("CREATE TABLE keyless_2 PARTITION OF keyless FOR VALUES FROM (100) TO (200)")
    writer.execute("INSERT INTO keyless VALUES (100, 1)")
    writer.execute("UPDATE keyless SET v = v + 1")
    kit.tick()
    kit.assert_exact(writer, "whole", "keyless")
    kit.forget("two")
    until(kit, CaptureMode.WAL, writer, "whole")
    writer.execute("CREATE TABLE last PARTITION OF whole FOR VALUES FROM (1000) TO (1100)")
    writer.execute("INSERT INTO whole VALUES (1000, 1)")
    writer.execute("UPDATE whole SET v = v + 1 WHERE id = 1000")
    kit.tick()
    kit.assert_exact(writer, "whole")
    assert kit.database.mode is CaptureMode.WAL


@pytest.mark.parametrize("is_read", [False, True])
def test_partitions_that_came_and_went_between_two_ticks(kit: Kit, writer: Writer, is_read: bool) -> None:
    """What was written to them came as their parent's; nothing says that it went with them."""
    kit.read("one", "whole", "id", "v")
    if is_read:
        kit.read("two", "plain", "id", "v")
    until(kit, CaptureMode.WAL, writer, "whole")
    for statements in (
        ["CREATE TABLE gone PARTITION OF whole FOR VALUES FROM (100) TO (200)", "INSERT INTO whole VALUES (101, 1)"],
        ["DROP TABLE gone"],
        [
            "CREATE TABLE gone PARTITION OF whole FOR VALUES FROM (100) TO (200)",
            "INSERT INTO whole VALUES (2, 1), (101, 1)",
            "DROP TABLE gone",
        ],
        [
            "ALTER TABLE whole ATTACH PARTITION plain FOR VALUES FROM (1000) TO (2000)",
            "INSERT INTO plain VALUES (1001, 1)",
            "ALTER TABLE whole DETACH PARTITION plain",
        ],
        ["UPDATE whole SET v = v + 1"],
    ):
        for statement in statements:
            writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "whole", *(["plain"] if is_read else []))


def test_partitions_that_stay_are_followed(kit: Kit, writer: Writer) -> None:
    kit.read("one", "whole", "id", "v")
    kit.read("two", "plain", "id", "v")
    until(kit, CaptureMode.WAL, writer, "whole", "plain")
    said = len(kit.said)
    for statement in (
        "INSERT INTO whole VALUES (3, 3)",
        "UPDATE plain SET v = v + 1",
        "DELETE FROM part",
        "INSERT INTO part VALUES (4, 4)",
    ):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "whole", "plain")
    assert not kit.said[said:]
