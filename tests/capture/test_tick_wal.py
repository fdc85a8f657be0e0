"""Ticks that move a database from triggers to its WAL and back: the mirrors are always what the tables are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

import millstream
from kits.capture import Kit, killed_at
from kits.wal_shops import REPLICATOR, WalShop
from kits.wal_tables import BOTH, Writer, always_surveyed, kit, shop, until, writer
from millstream import Code, MillstreamError
from millstream.capture import captures, change_readers, mode_switch
from millstream.capture.beginning import Beginning
from millstream.capture.change_readers import wal_of
from millstream.catalog.attached import CaptureMode
from millstream.naming import TableName
from millstream.notices import NoticeWarning
from millstream.reasons import CaptureReason
from millstream.sources.postgres import memory_limit
from millstream.sources.postgres.wal import reader
from millstream.sources.postgres.wal.slot import drop_slot

__all__ = ["always_surveyed", "kit", "shop", "writer"]
pytestmark = pytest.mark.postgres


def elsewhere(function: Callable[[], object]) -> None:
    """Do it in another thread, as another refresh would: locks belong to threads."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def triggers(writer: Writer) -> int:
    row = writer.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("in_pieces", [False, True])
def test_more_changes_than_are_held(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch, in_pieces: bool) -> None:
    """The largest windows are given up while they are read: those tables are compared with their mirrors."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    monkeypatch.setattr(memory_limit, "MAX_BYTES", 20_000)
    if in_pieces:
        monkeypatch.setattr(reader.next_position, "__defaults__", ((1, 20),))
    kit.said.clear()
    for large in ("a", "b"):
        writer.execute(f"INSERT INTO {large} (k, v) SELECT i, i FROM generate_series(1000, 1300) i")
        writer.execute(BOTH)
        writer.execute(f"DELETE FROM {large} WHERE k >= 1000")
        for other in ("a", "b"):
            writer.execute(f"INSERT INTO {other} (k, v) VALUES (2000 + {ord(large)}, 1)")
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        assert f"comparing shop.public.{large} with its mirror: {CaptureReason.TOO_MUCH}" in kit.said
    for statement in ("UPDATE a SET v = v + 1", "UPDATE b SET v = 0 WHERE k = 2", "DELETE FROM a WHERE k = 1"):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
    assert kit.database.mode is CaptureMode.WAL
    kit.assert_nothing_twice()


def test_what_is_held_of_a_key_is_its_last_row(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    monkeypatch.setattr(memory_limit, "MAX_BYTES", 20_000)
    kit.said.clear()
    for i in range(50):
        writer.execute(f"UPDATE a SET v = {i}, k = 10 - k")
        writer.execute("DELETE FROM a WHERE k = 5")
        writer.execute("INSERT INTO a VALUES (5, 1)")
    kit.tick()
    kit.assert_exact(writer, "a", "b")
    assert kit.said == []


def test_to_the_wal_and_every_kind_of_change(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    for statement in (
        BOTH,
        "INSERT INTO a VALUES (9, 9, repeat('y', 5000))",
        "UPDATE a SET v = -v",
        "UPDATE a SET k = k + 100",
        "DELETE FROM a WHERE k = 101",
        "DELETE FROM b WHERE ctid = (SELECT min(ctid) FROM b)",
        "TRUNCATE a",
        "INSERT INTO a VALUES (1, 1, 'again')",
        "ALTER TABLE a ALTER v TYPE int USING v * 2",
        "VACUUM FULL b",
    ):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
    assert triggers(writer) == 0
    before = kit.database
    kit.tick()
    kit.tick()
    assert kit.database.position == before.position or kit.database.mode is CaptureMode.WAL
    kit.assert_nothing_twice()


def test_large_values_that_an_update_leaves_as_they_are(kit: Kit, writer: Writer) -> None:
    """The WAL does not repeat what is stored out of line: the mirror keeps what it has."""
    large = "(SELECT string_agg(md5(concat(k, v, i)), '') FROM generate_series(1, 400) i)"  # hashes do not compress
    writer.execute(f"UPDATE a SET more = {large} WHERE k > 1")
    until(kit, CaptureMode.WAL, writer, "a", "b")
    out_of_line = "SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = 'a'::regclass"
    assert writer.execute(out_of_line).fetchone() == (True,)
    for statement in (
        "UPDATE a SET v = v + 1",
        "UPDATE a SET k = k + 100",
        "UPDATE a SET k = 1 WHERE k = 105; UPDATE a SET v = 0; UPDATE a SET v = 1 WHERE k = 1",
        f"UPDATE a SET v = 7, more = {large} WHERE k = 102; UPDATE a SET v = 2",
        "DELETE FROM a WHERE k = 103; INSERT INTO a VALUES (103, 1, NULL); UPDATE a SET v = 3",
    ):
        kit.said.clear()
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        assert kit.said == [], "nothing is read again"
    assert kit.database.mode is CaptureMode.WAL


def test_keys_of_any_type(kit: Kit, writer: Writer) -> None:
    """Rows of keys that Arrow cannot join by, or whose equal values differ, are found among those looked up."""
    for statement in (
        "CREATE TABLE tagged (k int, tags text[], v int, PRIMARY KEY (k, tags))",
        "INSERT INTO tagged SELECT i % 5, ARRAY['x' || i, NULL], i FROM generate_series(1, 50) i",
        "CREATE TABLE measured (k int, x float8, b bytea, v int, PRIMARY KEY (k, x, b))",
        "INSERT INTO measured VALUES (1, '-0', 'a', 1), (1, 'NaN', 'a', 2), (2, 1.5, 'b', 3), (2, 1.5, 'c', 4)",
    ):
        writer.execute(statement)
    kit.read("rt", "tagged", "k", "tags", "v")
    kit.read("rm", "measured", "k", "x", "b", "v")
    until(kit, CaptureMode.WAL, writer, "tagged", "measured")
    for statement in (
        "UPDATE tagged SET v = v + 1 WHERE k < 3",
        "UPDATE tagged SET tags = array_append(tags, 'more') WHERE v > 40",
        "DELETE FROM tagged WHERE k = 1",
        "UPDATE measured SET v = v + 1",
        "UPDATE measured SET b = b || 'x' WHERE x = 1.5",
        "DELETE FROM measured WHERE x = 0",
        "INSERT INTO tagged VALUES (1, '{}', 1)",
    ):
        writer.execute(statement)
        kit.tick()
        kit.assert_exact(writer, "a", "tagged", "measured")
    assert kit.database.mode is CaptureMode.WAL


def test_how_it_is_doing(kit: Kit, writer: Writer) -> None:
    """As the facade reports it, which starts no Spark for that."""
    with millstream.connect(kit.root) as ms:
        assert ms.slot_health() == []
        assert {(row.source_table, row.cdc_mode, row.alert) for row in ms.check_cdc_health()} == {
            ("public.a", "TRIGGER", None),
            ("public.b", "TRIGGER", None),
        }
        until(kit, CaptureMode.WAL, writer, "a", "b")
        (slot,) = ms.slot_health()
        assert slot.sources == ("public.a", "public.b")
        assert all(row.cdc_mode == "WAL" and row.slot_name == slot.slot_name for row in ms.check_cdc_health())
    config = kit.root / "millstream.toml"
    config.write_text("[millstream]\nslot_lag_alert_bytes = 0\n")
    with millstream.connect(kit.root, config=config) as ms:
        assert {row.alert for row in ms.check_cdc_health()} == {"slot_lag_exceeds_threshold"}


def test_a_database_out_of_reach_does_not_hide_the_others(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    nowhere = replace(kit.database, name="gone", address="postgresql://nobody@localhost:1/none?connect_timeout=1")
    lost = replace(kit.capture("a"), id="c-gone", database="gone", table="far")
    kit.catalog.put_database(nowhere, captures=[lost])
    with millstream.connect(kit.root) as ms:
        alerts = {(row.database, row.source_table, row.alert) for row in ms.check_cdc_health()}
        assert alerts == {
            ("shop", "public.a", None),
            ("shop", "public.b", None),
            ("gone", "public.far", "database_unreachable"),
        }
        assert sorted(str(slot.wal_status) for slot in ms.slot_health()) == ["reserved", "unreachable"]
    kit.catalog.drop_capture("c-gone")
    kit.catalog.drop_database("gone")


def test_late_transactions(kit: Kit, writer: Writer, shop: WalShop) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO b VALUES (50, 50)")
        late.execute("UPDATE a SET v = 77 WHERE k = 1")
        writer.execute("INSERT INTO b VALUES (51, 51)")
        kit.tick()
        assert kit.mirrored("b")["(50, 50)"] == 0
        late.commit()
    kit.tick()
    kit.assert_exact(writer, "a", "b")


def test_more_tables_and_columns(kit: Kit, writer: Writer, shop: WalShop) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, v int, w text)")
    writer.execute("INSERT INTO d VALUES (1, 1, 'w')")
    kit.read("rd", "d", "v")
    writer.execute("UPDATE d SET v = 2")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    kit.read("rd2", "d", "w")
    writer.execute("UPDATE d SET w = 'z'")
    writer.execute(BOTH)
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    assert kit.database.mode is CaptureMode.WAL
    kit.forget("rd")
    kit.forget("rd2")
    writer.execute(BOTH)
    kit.tick()
    kit.assert_exact(writer, "a", "b")


def test_a_table_the_wal_does_not_tell_of_takes_the_database_back(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.read("rc", "c", "k", "v")  # no key, and not REPLICA IDENTITY FULL
    kit.tick()
    kit.assert_exact(writer, "a", "b", "c")
    until(kit, CaptureMode.TRIGGER, writer, "a", "b", "c", statement="UPDATE c SET v = v + 1")
    assert kit.database.state.hindered
    writer.execute(BOTH)
    writer.execute("UPDATE c SET v = v + 1")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "c")
    assert triggers(writer) > 0
    slots = writer.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").fetchone()
    assert slots == (0,)
    writer.execute("ALTER TABLE c REPLICA IDENTITY FULL")
    until(kit, CaptureMode.WAL, writer, "a", "b", "c")


def test_a_lost_slot(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute(BOTH)
    writer.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    writer.execute(BOTH)
    kit.tick()
    assert kit.database.mode is CaptureMode.TRIGGER
    kit.assert_exact(writer, "a", "b")
    until(kit, CaptureMode.WAL, writer, "a", "b")


def test_slots_that_are_lost_again_and_again(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a comparison of all tables: the database stays on triggers longer each time."""
    clock = datetime(2030, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(kit.captures, "_clock", lambda: clock)
    monkeypatch.setattr(mode_switch, "_BACK_OFF", timedelta(minutes=10))
    for minutes in (10, 20, 40):
        until(kit, CaptureMode.WAL, writer, "a", "b")
        writer.execute(f"SELECT pg_drop_replication_slot('{kept(writer)[1][0]}')")
        for passed in (0, minutes - 1):
            clock += timedelta(minutes=passed)
            for _ in range(3):
                writer.execute(BOTH)
                kit.tick()
                assert kit.database.mode is CaptureMode.TRIGGER
        kit.assert_exact(writer, "a", "b")
        assert "tried again at" in (kit.database.state.hindered or "")
        clock += timedelta(minutes=1)
    until(kit, CaptureMode.WAL, writer, "a", "b")
    clock += timedelta(days=2)
    writer.execute(f"SELECT pg_drop_replication_slot('{kept(writer)[1][0]}')")
    writer.execute(BOTH)
    kit.tick()
    assert kit.database.state.lost is not None
    assert kit.database.state.lost.times == 1, "that is long ago"


@pytest.mark.parametrize("is_read", [True, False])
def test_a_slot_that_was_left(kit: Kit, writer: Writer, shop: WalShop, is_read: bool) -> None:
    """The tick that leaves it is killed before it is dropped; a later one drops it, or the end of the last capture."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    (name,) = kept(writer)[1]
    writer.execute(f"ALTER PUBLICATION {name} DROP TABLE b")
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, ("millstream.capture.orphans:drop_slot_and_publication", "before", 1), "tick")
    assert kept(writer)[1] == [name]
    assert kit.database.mode is CaptureMode.TRIGGER
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    if is_read:
        kit.tick()
        kit.assert_exact(writer, "a", "b")
    else:
        kit.forget("ra")
        kit.forget("rb")
    assert kept(writer) == ([], [])
    assert kit.database.state.unread_slot is None


def test_a_slot_that_was_left_and_cannot_be_dropped_yet(kit: Kit, writer: Writer, shop: WalShop) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    (name,) = kept(writer)[1]
    writer.execute(f"ALTER PUBLICATION {name} DROP TABLE b")
    kit.catalog.put_database(replace(kit.database, cdc="trigger"))
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute(f"ALTER ROLE {REPLICATOR} NOREPLICATION")
        try:
            writer.execute(BOTH)
            kit.tick()
            kit.assert_exact(writer, "a", "b")
            assert kept(writer)[1] == [name]
        finally:
            superuser.execute(f"ALTER ROLE {REPLICATOR} REPLICATION")
    kit.tick()
    assert kept(writer) == ([], [])


@pytest.mark.parametrize(
    "point",
    [("put_database", "after", 1), ("apply", "after", 1), ("apply", "after", 2), ("put_database", "before", 2)],
    ids=lambda p: f"{p[1]} {p[0]} {p[2]}",
)
def test_a_tick_that_is_killed(kit: Kit, writer: Writer, shop: WalShop, point: tuple[str, str, int]) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.tick()
    writer.execute(BOTH)
    killed_at(kit.root, shop.address, point, "tick")
    writer.execute(BOTH)
    writer.execute("DELETE FROM b WHERE ctid = (SELECT max(ctid) FROM b)")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        kit.assert_nothing_twice()
        writer.execute(BOTH)


def kept(writer: Writer) -> tuple[list[str], list[str]]:
    """The tables that are published, and the slots."""
    slots = writer.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()").fetchall()
    tables = writer.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1").fetchall()
    return [name for (name,) in tables], [name for (name,) in slots]


def test_the_wal_is_let_go_with_the_last_reader(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.forget("ra")
    assert kept(writer)[0] == ["b"]
    assert list(wal_of(kit.database).published) == [kit.capture("b").id]
    writer.execute("INSERT INTO b VALUES (7, 7)")
    kit.tick()
    kit.assert_exact(writer, "b")
    assert kit.database.mode is CaptureMode.WAL
    kit.forget("rb")
    assert kept(writer) == ([], [])
    assert writer.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    assert (kit.database.mode, kit.database.position) == (CaptureMode.TRIGGER, None)
    kit.read("again", "b", "k", "v")
    until(kit, CaptureMode.WAL, writer, "b")
    kit.forget("again")
    assert kept(writer) == ([], [])


def test_a_move_to_the_wal_ends_with_the_last_reader(kit: Kit, writer: Writer, shop: WalShop) -> None:
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO c VALUES (5, 5)")  # a slot is not complete before it ends
        writer.execute(BOTH)
        kit.tick()
        assert kit.database.mode is CaptureMode.TRANSITIONING
        kit.forget("ra")
        kit.forget("rb")
        assert kept(writer) == ([], [])
        assert kit.database.mode is CaptureMode.TRIGGER


def making_a_slot(shop: WalShop) -> list[int]:
    """The server's processes that are making one."""
    with shop.server.superuser(shop.name) as superuser:
        rows = superuser.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
            " AND query LIKE 'SELECT pg_create_logical_replication_slot%'"
        ).fetchall()
    return [int(str(pid)) for (pid,) in rows]


def test_the_connection_that_makes_a_slot_is_lost(kit: Kit, writer: Writer, shop: WalShop) -> None:
    """Ticks go on by triggers, and the slot is begun again."""
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO c VALUES (5, 5)")  # a slot is not complete before it ends
        for _ in range(3):
            while not making_a_slot(shop):
                writer.execute(BOTH)
                kit.tick()
                kit.assert_exact(writer, "a", "b")
                assert kit.database.mode is CaptureMode.TRANSITIONING
            with shop.server.superuser(shop.name) as superuser:
                for pid in making_a_slot(shop):
                    superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        late.commit()
    until(kit, CaptureMode.WAL, writer, "a", "b")


def test_no_connection_is_left_to_make_a_slot_by(kit: Kit, writer: Writer, shop: WalShop) -> None:
    kit.tick()
    with shop.server.superuser() as superuser:
        try:
            superuser.execute(f"ALTER ROLE {REPLICATOR} CONNECTION LIMIT 1")
            for _ in range(4):
                writer.execute(BOTH)
                kit.tick()
                kit.assert_exact(writer, "a", "b")
                assert kit.database.mode is CaptureMode.TRANSITIONING
        finally:
            superuser.execute(f"ALTER ROLE {REPLICATOR} CONNECTION LIMIT -1")
    until(kit, CaptureMode.WAL, writer, "a", "b")


def test_a_move_that_is_given_up_while_another_process_makes_the_slot(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process may be gone, and the server not know it: the slot is dropped by a later tick."""
    monkeypatch.setattr(drop_slot, "__defaults__", (0.2,))
    clock = datetime.now(UTC)
    monkeypatch.setattr(kit.captures, "_clock", lambda: clock)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR)) as late:
        late.execute("INSERT INTO c VALUES (5, 5)")
        while not making_a_slot(shop):
            writer.execute(BOTH)
            kit.tick()
        switched = kit.captures._switches["shop"].pursuit
        assert switched is not None
        others, switched.creation = switched.creation, None
        clock += timedelta(days=1)
        for _ in range(2):
            writer.execute(BOTH)
            kit.tick()
            kit.assert_exact(writer, "a", "b")
            assert kit.database.mode is CaptureMode.TRIGGER
            assert kit.database.state.unread_slot is not None
        late.commit()
    assert others is not None
    others.close()
    until(kit, CaptureMode.WAL, writer, "a", "b")
    assert len(kept(writer)[1]) == 1


def test_what_could_not_be_ended_is_ended_later(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    known = kit.database
    kit.catalog.put_database(replace(known, address="postgresql://nobody@localhost:1/none?connect_timeout=1"))
    for name in ("ra", "rb"):
        with pytest.warns(NoticeWarning, match="a later tick retries"):
            kit.forget(name)
        assert kit.catalog.captures("shop")
    kit.captures.end_forgotten()
    assert "a later tick retries" in kit.said[-1]
    kit.catalog.put_database(known)
    kit.captures.end_forgotten()
    assert len(kept(writer)[1]) == 1, "not again at once"
    monkeypatch.setattr(captures, "_ENDING_SECONDS", 0.0)
    kit.captures._next_ending.clear()
    kit.captures.end_forgotten()
    assert kept(writer) == ([], [])
    assert kit.catalog.captures("shop") == ()


def test_a_slot_that_outlived_the_last_capture_is_dropped_later(kit: Kit, writer: Writer) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    for name, table in (("ra", "a"), ("rb", "b")):
        kit.catalog.drop_stream_table(TableName.parse(name))
        kit.catalog.drop_capture(kit.capture(table).id)
    kit.captures.end_forgotten()
    assert kept(writer) == ([], [])
    assert kit.database.mode is CaptureMode.TRIGGER


def test_others_tick_while_a_table_is_loaded(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot forgets what they have read, and what was written to the new table between its snapshot and then."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, v int)")
    copy = Beginning._copy

    def slow_copy(beginning: Beginning, *arguments: Any) -> int:
        version = copy(beginning, *arguments)
        writer.execute("INSERT INTO d VALUES (1, 1)")
        for _ in range(2):
            writer.execute(BOTH)
            elsewhere(kit.tick)
        return version

    monkeypatch.setattr(Beginning, "_copy", slow_copy)
    kit.read("rd", "d", "k", "v")
    writer.execute("INSERT INTO d VALUES (2, 2)")
    kit.tick()
    kit.assert_exact(writer, "a", "b", "d")
    assert kit.database.mode is CaptureMode.WAL


def test_mirrors_that_are_ahead_of_a_piece(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick was killed after it had landed all; the next one goes in pieces, over what is landed already."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.tick()
    for number in range(6):
        writer.execute("INSERT INTO b VALUES (%s, 0)", [100 + number])
        writer.execute("UPDATE a SET v = v + 1")
    killed_at(kit.root, shop.address, ("apply", "after", 2), "tick")
    monkeypatch.setattr(change_readers, "next_position", partial(change_readers.next_position, catch_up=(0, 8)))
    for number in range(6):
        writer.execute("INSERT INTO b VALUES (%s, 0)", [200 + number])
        writer.execute("UPDATE a SET v = v + 1")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b")
        writer.execute(BOTH)


def test_a_table_that_is_loaded_before_others_catch_up_in_pieces(
    kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute("CREATE TABLE d (k int, v int)")
    writer.execute("ALTER TABLE d REPLICA IDENTITY FULL")
    kit.read("rd", "d", "k", "v")
    monkeypatch.setattr(change_readers, "next_position", partial(change_readers.next_position, catch_up=(0, 8)))
    for number in range(10):
        writer.execute("INSERT INTO d VALUES (%s, 0)", [number])
        writer.execute(BOTH)
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b", "d")
        writer.execute("INSERT INTO d VALUES (77, 0)")


@pytest.mark.parametrize("nth", [1, 2])
def test_a_table_that_is_loaded_while_its_database_moves(
    kit: Kit, writer: Writer, shop: WalShop, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """It is published by the next tick, which is killed: its buffer is gone, and only a comparison makes it right."""
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, v int)")
    copy = Beginning._copy

    def slow_copy(beginning: Beginning, *arguments: Any) -> int:
        version = copy(beginning, *arguments)
        elsewhere(lambda: until(kit, CaptureMode.WAL, writer, "a", "b"))
        return version

    monkeypatch.setattr(Beginning, "_copy", slow_copy)
    kit.read("rd", "d", "k", "v")
    writer.execute("INSERT INTO d VALUES (1, 1)")
    killed_at(kit.root, shop.address, ("put_database", "after", nth), "tick")
    writer.execute("INSERT INTO d VALUES (2, 2)")
    for _ in range(2):
        kit.tick()
        kit.assert_exact(writer, "a", "b", "d")
        writer.execute("UPDATE d SET v = v + 1")


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_a_slot_that_is_lost_on_the_way_back(kit: Kit, writer: Writer, shop: WalShop, nth: int) -> None:
    """Buffers are made again, and the tick is killed: nothing has what they held."""
    until(kit, CaptureMode.WAL, writer, "a", "b")
    kit.read("rc", "c", "k", "v")  # no key, and not REPLICA IDENTITY FULL
    kit.tick()
    assert kit.database.mode is CaptureMode.WAL
    assert triggers(writer) > 0
    writer.execute("INSERT INTO b VALUES (100, 100)")
    writer.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    killed_at(kit.root, shop.address, ("put_database", "after", nth), "tick")
    for _ in range(2):
        writer.execute("INSERT INTO b VALUES (101, 101)")
        kit.tick()
        kit.assert_exact(writer, "a", "b", "c")


def test_a_value_that_was_corrected_since(kit: Kit, writer: Writer) -> None:
    writer.execute("CREATE TABLE d (k int PRIMARY KEY, d date)")
    writer.execute("CREATE TABLE e (d date)")
    writer.execute("ALTER TABLE e REPLICA IDENTITY FULL")
    kit.read("rd", "d", "k", "d")
    kit.read("re", "e", "d")
    until(kit, CaptureMode.WAL, writer, "a", "b")
    writer.execute("WITH x AS (INSERT INTO d VALUES (1, 'infinity')) INSERT INTO e VALUES ('infinity')")
    with pytest.raises(MillstreamError) as caught:
        kit.tick("d", "e")
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    writer.execute("UPDATE d SET d = '2024-01-02'")
    writer.execute("UPDATE e SET d = '2024-01-02'")
    writer.execute(BOTH)
    kit.tick("d", "e")
    kit.assert_exact(writer, "a", "b", "d", "e")
    assert kit.database.mode is CaptureMode.WAL
