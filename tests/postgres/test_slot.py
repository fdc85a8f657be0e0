"""Slots: made without blocking, read without consuming, watched, lost; and what publishes tables for them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
from shops import STRANGER
from wal_shops import WalCapture, WalShop, new_wal_shop, publish

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.connection import connect
from millstream.sources.postgres.fitness import refuse, server_obstacles
from millstream.sources.postgres.installed import BufferSettings
from millstream.sources.postgres.lsn import parse_lsn, print_lsn
from millstream.sources.postgres.privileges import missing_grants
from millstream.sources.postgres.publication import drop_publication, ensure_published, read_published
from millstream.sources.postgres.relations import find_relation
from millstream.sources.postgres.slot import (
    advance,
    check_slot,
    drop_slot,
    flush_wal,
    peek,
    slot_of,
    slot_state,
)
from millstream.sources.postgres.slot_creation import SlotCreation, create_slot, current_snapshot, has_new_definitions
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.testing.postgres_server import FAST, LOGICAL, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def make(shop: WalShop, *names: str) -> None:
    """Tables with a key each, published, and a slot."""
    with shop.owner() as owner, shop.connect() as connection:
        for name in names:
            owner.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
        publish(shop, connection, [(find_relation(connection, name), ["id"]) for name in names])
    create_slot(shop.address, shop.slot.name, 30)


def code_of(error: pytest.ExceptionInfo[MillstreamError]) -> Code:
    return error.value.code


def test_names_fit_and_differ() -> None:
    names = [slot_of(lake, database).name for lake in ("a", "b") for database in ("shop", "Shop!", "x" * 100, "ü")]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name.islower() for name in names)


def test_lsns_and_snapshots_are_read_as_the_server_writes_them(shop: WalShop) -> None:
    with shop.connect() as connection, shop.owner() as owner:
        owner.execute("BEGIN; SELECT pg_current_xact_id()")
        (text, own), *_ = connection.execute(
            "SELECT pg_current_snapshot()::text, pg_current_xact_id()::text"
        ).fetchall()
        snapshot = PgSnapshot.parse(text)
        assert str(snapshot) == text
        for xid in range(snapshot.xmin - 3, snapshot.xmax + 3):
            row = connection.execute("SELECT pg_visible_in_snapshot(%s::text::xid8, %s::pg_snapshot)", [xid, text])
            assert row.fetchone() == (snapshot.sees(xid),)
        assert not snapshot.sees(int(own))
        for lsn in ("0/0", "0/1AF6B28", "FFFFFFFF/FFFFFFFF"):
            assert connection.execute("SELECT %s::pg_lsn - '0/0'::pg_lsn", [lsn]).fetchone() == (parse_lsn(lsn),)
            assert print_lsn(parse_lsn(lsn)) == lsn


@pytest.mark.parametrize("xmax", [2**31 + 7, 2**32 + 5, 5 * 2**32 - 3, 100])
def test_a_short_transaction_id_is_completed(xmax: int) -> None:
    snapshot = PgSnapshot(xmax, xmax, frozenset())
    for full in (xmax - 2**31 + 1, xmax - 1, xmax, xmax + 1000, xmax + 2**31 - 1):
        if full > 0:
            assert snapshot.full_xid(full & (2**32 - 1)) == full


def test_a_slot_waits_for_open_transactions_and_nobody_for_it(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        owner.execute("BEGIN; INSERT INTO t VALUES (1)")
        creation = SlotCreation(shop.address, shop.slot.name, 30)
        assert not creation.poll()
        assert not creation.poll(0.3)
        state = slot_state(connection, shop.slot.name)
        assert state is None or not state.is_ready
        owner.execute("COMMIT")
        assert creation.poll(10)
        state = slot_state(connection, shop.slot.name)
        assert state is not None
        assert state.is_ready
        assert (state.plugin, state.database, state.wal_status) == ("pgoutput", shop.name, "reserved")
        assert creation.poll()


def test_a_slot_that_takes_too_long_is_given_up(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        owner.execute("BEGIN; INSERT INTO t VALUES (1)")
        with pytest.raises(MillstreamError) as caught:
            create_slot(shop.address, shop.slot.name, 0.4)
        assert code_of(caught) is Code.LOCK_TIMEOUT
        left = SlotCreation(shop.address, shop.slot.name, 30)
        assert not left.poll(0.2)
        left.close()
        assert slot_state(connection, shop.slot.name) is None


def test_reading_consumes_nothing_until_the_slot_is_advanced(shop: WalShop) -> None:
    make(shop, "t")
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("INSERT INTO t VALUES (1)")
        end = flush_wal(connection)
        first = list(peek(connection, shop.slot, end))
        assert [chr(m[0]) for m in first] == ["B", "R", "I", "C"]
        assert list(peek(connection, shop.slot, end)) == first
        stopped = peek(connection, shop.slot, end)
        next(stopped)
        stopped.close()
        advance(connection, shop.slot, end)
        assert list(peek(connection, shop.slot, flush_wal(connection))) == []
        advance(connection, shop.slot, end - 1)  # not backwards
        check_slot(connection, shop.slot, end)
        with pytest.raises(MillstreamError) as caught:
            check_slot(connection, shop.slot, end - 1)
        assert code_of(caught) is Code.CAPTURE_LOST


def test_a_slot_that_is_gone_is_lost_capture(shop: WalShop) -> None:
    make(shop, "t")
    with shop.connect() as connection:
        end = flush_wal(connection)
        assert drop_slot(connection, shop.slot.name)
        assert not drop_slot(connection, shop.slot.name)
        for call in (
            lambda: list(peek(connection, shop.slot, end)),
            lambda: advance(connection, shop.slot, end),
            lambda: check_slot(connection, shop.slot, end),
        ):
            with pytest.raises(MillstreamError) as caught:
                call()
            assert code_of(caught) is Code.CAPTURE_LOST


def test_a_stranger_may_not_use_slots(shop: WalShop) -> None:
    make(shop, "t")
    with shop.server.superuser() as superuser:
        if not superuser.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [STRANGER]).fetchone():
            superuser.execute(f"CREATE ROLE {STRANGER} LOGIN".encode())
    address = Address.parse(shop.server.url(shop.name, STRANGER))
    with connect(address) as connection:
        with pytest.raises(MillstreamError) as caught:
            list(peek(connection, shop.slot, 1))
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        with pytest.raises(MillstreamError) as caught:
            create_slot(address, "other", 5)
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        (obstacle,) = server_obstacles(connection, shop.slot.name)
        assert obstacle.remedy == f'ALTER ROLE "{STRANGER}" REPLICATION'
        error = refuse([obstacle])
        assert (error.code, error.hint) == (Code.DATABASE_UNFIT, obstacle.remedy)


def test_where_a_service_has_a_role_for_replication_that_one_is_wanted() -> None:
    with Server({**FAST, **LOGICAL}) as server:
        shop = new_wal_shop(server)
        with server.superuser() as superuser:
            superuser.execute(f"CREATE ROLE {STRANGER} LOGIN; CREATE ROLE rds_replication".encode())
        with connect(Address.parse(shop.server.url(shop.name, STRANGER))) as connection:
            lacking = f'GRANT "rds_replication" TO "{STRANGER}"'
            assert [o.remedy for o in server_obstacles(connection, shop.slot.name)] == [lacking]
            assert f"{lacking};" in missing_grants(connection, "changes", wal=True).required
            with server.superuser() as superuser:
                superuser.execute(f"GRANT rds_replication TO {STRANGER}".encode())
            assert server_obstacles(connection, shop.slot.name) == ()
            assert f"{lacking};" not in missing_grants(connection, "changes", wal=True).required


def test_wal_that_the_server_threw_away_is_lost_capture() -> None:
    small = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with Server({**FAST, **LOGICAL, **small}) as server:
        shop = new_wal_shop(server)
        with shop.owner() as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        capture = WalCapture.begin(shop, "t")
        with server.superuser(shop.name) as superuser:
            deadline = time.monotonic() + 60
            while (state := slot_state(capture.connection, shop.slot.name)) is not None and not state.is_lost:
                assert time.monotonic() < deadline
                superuser.execute("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000))")
                superuser.execute("SELECT pg_switch_wal()")
                superuser.execute("CHECKPOINT")
        with pytest.raises(MillstreamError) as caught:
            capture.tick()
        assert code_of(caught) is Code.CAPTURE_LOST
        with pytest.raises(MillstreamError) as caught:
            list(peek(capture.connection, shop.slot, flush_wal(capture.connection)))
        assert code_of(caught) is Code.CAPTURE_LOST
        capture.close()


def test_without_logical_wal_the_setting_is_named() -> None:
    with Server(FAST) as server:
        shop = new_wal_shop(server)
        with shop.connect() as connection:
            (obstacle,) = server_obstacles(connection, shop.slot.name)
            assert "wal_level" in obstacle.what
        with pytest.raises(MillstreamError) as caught:
            create_slot(shop.address, shop.slot.name, 5)
        assert code_of(caught) is Code.DATABASE_UNFIT


def test_a_publication_is_made_by_whom_may(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute('CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE "Odd; name" (id int PRIMARY KEY, a int)')
        t, odd = find_relation(connection, "t"), find_relation(connection, "Odd; name")
        name = shop.slot.publication
        with pytest.raises(MillstreamError) as caught:
            ensure_published(connection, name, [(t, ["id"])])
        assert code_of(caught) is Code.PRIVILEGE_MISSING
        publish(shop, connection, [(t, ["id"])])
        before = read_published(connection, name, [(t, ["id"])])
        assert not before.missing
        both = [(t, ["id"]), (odd, ["id", "a"])]
        assert set(read_published(connection, name, both).missing) == {odd.oid}
        publish(shop, connection, both)
        assert not read_published(connection, name, both).missing
        assert read_published(connection, name, both).fingerprints[t.oid] == before.fingerprints[t.oid]
        assert not drop_publication(connection, name)
    with connect(Address.parse(shop.server.url(shop.name, "shop_owner"))) as owning:
        ensure_published(owning, "own", both)
        assert drop_publication(owning, "own")


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER PUBLICATION {} DROP TABLE t",
        "ALTER PUBLICATION {} SET TABLE t (a)",
        "ALTER PUBLICATION {} SET TABLE t WHERE (id > 5)",
        "ALTER PUBLICATION {} SET (publish = 'insert')",
        "ALTER PUBLICATION {} SET (publish_via_partition_root = false)",
        "DROP PUBLICATION {}",
    ],
)
def test_a_publication_that_publishes_less_is_noticed_and_repaired_by_its_owner(shop: WalShop, damage: str) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (id int, a int, PRIMARY KEY (id))")
        wanted = [(find_relation(connection, "t"), ["id", "a"])]
        publish(shop, connection, wanted)
        before = read_published(connection, shop.slot.publication, wanted)
        owner.execute(damage.format(shop.slot.publication).encode())
        assert read_published(connection, shop.slot.publication, wanted).missing
        publish(shop, connection, wanted)
        after = read_published(connection, shop.slot.publication, wanted)
        assert not after.missing
        assert after.fingerprints != before.fingerprints  # changes may be missing


def test_a_publication_without_generated_columns_is_told_to_have_them(shop: WalShop) -> None:
    if shop.server_version < 18:
        pytest.skip("before PostgreSQL 18 they cannot be published")
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)")
        name = f'"{shop.slot.publication}"'
        owner.execute(f"CREATE PUBLICATION {name} FOR TABLE g WITH (publish_via_partition_root = true)".encode())
        relation = find_relation(connection, "g")
        assert not read_published(connection, shop.slot.publication, [(relation, ["id"])]).missing
        assert read_published(connection, shop.slot.publication, [(relation, ["id", "d"])]).missing
        publish(shop, connection, [(relation, ["id", "d"])])


def test_a_partition_under_a_published_parent_is_not_published_itself(shop: WalShop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE p (k int PRIMARY KEY) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        wanted = [(find_relation(connection, "p"), ["k"]), (find_relation(connection, "p1"), ["k"])]
        publish(shop, connection, wanted[:1])
        assert set(read_published(connection, shop.slot.publication, wanted).missing) == {wanted[1][0].oid}


def test_a_publication_waits_for_no_lock_for_long(shop: WalShop) -> None:
    impatient = BufferSettings(lock_timeout_ms=100, patience_seconds=0.3)
    address = Address.parse(shop.server.url(shop.name, "shop_owner"))
    with connect(address) as connection, connect(address) as other:
        connection.execute("CREATE TABLE public.held (id int)")
        relation = find_relation(connection, "held")
        with other.transaction():
            other.execute("LOCK TABLE public.held IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(MillstreamError) as caught:
                ensure_published(connection, "own", [(relation, ["id"])], impatient)
        assert caught.value.code is Code.LOCK_TIMEOUT
        ensure_published(connection, "own", [(relation, ["id"])], impatient)
        with other.transaction():
            other.execute("ALTER PUBLICATION own DROP TABLE public.held")
            with pytest.raises(MillstreamError) as caught:
                drop_publication(connection, "own", impatient)
        assert caught.value.code is Code.LOCK_TIMEOUT
        assert drop_publication(connection, "own", impatient)


def at_transaction(server: Server, number: int) -> None:
    """Have a server that has used so many transactions, and has frozen all it holds."""
    with server.superuser() as superuser:
        superuser.execute("UPDATE pg_database SET datallowconn = true")
        databases = [str(name) for (name,) in superuser.execute("SELECT datname FROM pg_database").fetchall()]
    for database in databases:
        with server.superuser(database) as superuser:
            superuser.execute("VACUUM (FREEZE)")
    server.stop()
    epoch, xid = divmod(number, 1 << 32)
    server._run("pg_resetwal", "-f", "-e", str(epoch), "-x", str(xid), "-D", str(server.data))
    statuses = server.data / "pg_xact" / f"{xid // (1 << 20):04X}"
    statuses.write_bytes(bytes(1 << 18))
    shutil.chown(statuses, server.data.stat().st_uid)
    server.start()


def test_definitions_of_any_age_are_told_from_new_ones() -> None:
    """Rows that were frozen keep the ids of their transactions, which seem to be yet to come 2^31 later."""
    with Server({**FAST, **LOGICAL}) as old:
        shop = new_wal_shop(old)
        with shop.owner() as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for number in (1_900_000_000, 3_000_000_000, (1 << 32) + 500_000):
            at_transaction(old, number)
            with shop.owner() as owner, shop.connect() as connection:
                began = current_snapshot(connection)
                assert not has_new_definitions(connection, began)
                owner.execute("INSERT INTO t VALUES (1)")
                assert not has_new_definitions(connection, began)
                create_slot(shop.address, shop.slot.name, 10)
                assert drop_slot(connection, shop.slot.name)
                owner.execute("TRUNCATE t")
                assert has_new_definitions(connection, began)
                assert not has_new_definitions(connection, current_snapshot(connection))
