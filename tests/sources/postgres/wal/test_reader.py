"""Changes from the WAL: exact where old rows are whole, completed from the mirror where only their keys are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kits.wal_shops import WalCapture, WalShop, new_wal_shop
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.server.table_fingerprints import read_fingerprints
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.eligibility import wal_tables
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges
from millstream.sources.postgres.wal.reader import next_position, read_wal
from millstream.sources.postgres.wal.slot import drop_slot
from millstream.sources.postgres.wal.slot_creation import current_snapshot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

Begin = Callable[..., WalCapture]


@pytest.fixture
def shop(server: Server) -> WalShop:
    return new_wal_shop(server)


@pytest.fixture
def begin(shop: WalShop) -> Iterator[Begin]:
    """Captures that leave no slot behind."""
    begun: list[WalCapture] = []

    def start(*names: str, columns: dict[str, list[str]] | None = None) -> WalCapture:
        begun.append(WalCapture.begin(shop, *names, columns=columns))
        return begun[-1]

    yield start
    for capture in begun:
        if capture.connection.closed:
            continue
        drop_slot(capture.connection, shop.slot.name)
        capture.close()


def run(shop: WalShop, *statements: str) -> None:
    """Each statement is a transaction of the owner's."""
    with shop.owner() as owner:
        for statement in statements:
            owner.execute(statement.encode())


IDENTITIES = ["id int PRIMARY KEY", "id int"]


@pytest.mark.parametrize("key", IDENTITIES)
def test_every_kind_of_change(shop: WalShop, begin: Begin, key: str) -> None:
    run(shop, f"CREATE TABLE t ({key}, a text, b numeric)")
    if "KEY" not in key:
        run(shop, "ALTER TABLE t REPLICA IDENTITY FULL")
    run(shop, "INSERT INTO t SELECT i, 'a' || i, i FROM generate_series(1, 9) i")
    capture = begin("t")
    assert capture.tick().transactions == 0
    run(
        shop,
        "INSERT INTO t VALUES (20, NULL, 2.50), (21, '', NULL)",
        "UPDATE t SET b = b + 1 WHERE id < 4",
        "UPDATE t SET id = id + 100 WHERE id IN (4, 5)",
        "DELETE FROM t WHERE id IN (1, 104, 20)",
        "UPDATE t SET a = 'x' WHERE id = 105; UPDATE t SET a = 'y' WHERE id = 105",
        "INSERT INTO t VALUES (1, 'again', 0)",
    )
    capture.tick()
    (window,) = capture.batches[-1].changes.values()
    assert isinstance(window, KeyedTableChanges if "KEY" in key else TableChanges)
    run(shop, "UPDATE t SET b = 0 WHERE id = 21; TRUNCATE t; INSERT INTO t VALUES (7, 'new', 7)")
    capture.tick()
    run(shop, "UPDATE t SET id = 8; TRUNCATE t")
    capture.tick()
    assert not capture.bags["t"]


def test_duplicates_of_a_table_without_a_key(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (a int, b text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    capture = begin("t")
    run(shop, "INSERT INTO t SELECT 1, NULL FROM generate_series(1, 5)", "UPDATE t SET b = 'x' WHERE a = 1")
    capture.tick()
    run(shop, "DELETE FROM t WHERE ctid IN (SELECT ctid FROM t LIMIT 2)")
    capture.tick()
    assert sum(capture.bags["t"].values()) == 3


def test_only_some_columns(shop: WalShop, begin: Begin) -> None:
    run(
        shop,
        "CREATE TABLE t (unused text, id int PRIMARY KEY, a int, wide text)",
        "INSERT INTO t VALUES ('u', 1, 1, 'w')",
    )
    capture = begin("t", columns={"t": ["id", "a"]})
    run(shop, "UPDATE t SET unused = 'v'", "ALTER TABLE t DROP COLUMN unused", "ALTER TABLE t ADD COLUMN later int")
    run(shop, "UPDATE t SET a = 2, later = 5", "INSERT INTO t VALUES (2, 2, 'w', 3)", "ALTER TABLE t RENAME TO other")
    run(shop, "INSERT INTO other VALUES (3, 2, 'w', 3)")
    capture.captured["t"] = (find_relation(capture.connection, "other"), capture.captured["t"][1])
    capture.tick()
    assert len(capture.bags["t"]) == 3


def test_partitions_are_read_as_their_parent(shop: WalShop, begin: Begin) -> None:
    run(
        shop,
        "CREATE TABLE p (k int, v text, n int, PRIMARY KEY (k, n)) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 (n int NOT NULL, gone int, v text, k int NOT NULL)",
        "ALTER TABLE p2 DROP COLUMN gone",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)",
        "INSERT INTO p SELECT 1 + i % 2, 'a', i FROM generate_series(1, 10) i",
    )
    capture = begin("p")
    run(
        shop,
        "INSERT INTO p1 VALUES (1, 'direct', 50)",
        "INSERT INTO p2 (n, v, k) VALUES (51, 'direct', 2)",
        "UPDATE p SET v = 'b' WHERE n < 4",
        "UPDATE p SET k = 2 WHERE n = 4",
        "UPDATE p SET k = 1 WHERE n = 3",
        "DELETE FROM p2 WHERE n = 5",
    )
    capture.tick()
    run(shop, "TRUNCATE p; INSERT INTO p VALUES (1, 'c', 1)")
    capture.tick()


def test_truncating_one_partition_shows_in_the_fingerprint_only(shop: WalShop, begin: Begin) -> None:
    run(
        shop,
        "CREATE TABLE p (k int PRIMARY KEY) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "INSERT INTO p VALUES (1)",
    )
    capture = begin("p")
    relation = find_relation(capture.connection, "p")
    before = read_fingerprints(capture.connection, {relation.oid: ["k"]})[relation.oid]
    run(shop, "TRUNCATE p1")
    new, _, tables = capture.cut()
    assert not read_wal(capture.connection, shop.slot, tables, capture.position, new).changes
    after = read_fingerprints(capture.connection, {relation.oid: ["k"]})[relation.oid]
    assert after.storage != before.storage


def test_columns_that_change_between_two_positions_are_reported(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    capture = begin("t", "u")
    _, _, tables = capture.cut()
    run(shop, "INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1)", "ALTER TABLE t ALTER a TYPE bigint")
    run(shop, "INSERT INTO t VALUES (2, 2)", "ALTER TABLE t ALTER a TYPE int", "INSERT INTO t VALUES (3, 3)")
    new, _, _ = capture.cut()
    batch = read_wal(capture.connection, shop.slot, tables, capture.position, new)
    assert set(batch.altered) == {"t"}
    assert set(batch.changes) == {"u"}
    assert "another type" in batch.altered["t"]
    run(shop, "ALTER TABLE t RENAME a TO b", "INSERT INTO t VALUES (4, 4)")
    with capture.looking.transaction():
        later = next_position(capture.connection, shop.slot, batch.position, current_snapshot(capture.looking))
    batch = read_wal(capture.connection, shop.slot, tables, batch.position, later)
    assert "column a is not in the WAL" in batch.altered["t"]


def test_uncommitted_aborted_and_prepared_transactions(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)")
    capture = begin("t")
    with shop.owner() as early, shop.owner() as other:
        early.execute("BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2)")
        other.execute("BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION 'later'")
        run(shop, "INSERT INTO t VALUES (4)", "BEGIN; INSERT INTO t VALUES (5); ROLLBACK")
        assert capture.tick().transactions == 1
        early.execute("ROLLBACK TO s; INSERT INTO t VALUES (6); COMMIT")
        assert capture.tick().transactions == 1
        run(shop, "INSERT INTO t VALUES (7)")
        capture.tick()
        other.execute("COMMIT PREPARED 'later'")
        assert capture.tick().transactions == 1
    assert len(capture.bags["t"]) == 5


def test_what_was_read_is_not_read_again_though_the_slot_did_not_move(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)")
    capture = begin("t")
    run(shop, "INSERT INTO t VALUES (1)")
    new, _, tables = capture.cut()
    first = read_wal(capture.connection, shop.slot, tables, capture.position, new)
    run(shop, "INSERT INTO t VALUES (2)")
    again = read_wal(capture.connection, shop.slot, tables, capture.position, new)
    assert again.changes["t"].rows.equals(first.changes["t"].rows)
    later, _, tables = capture.cut()
    rest = read_wal(capture.connection, shop.slot, tables, first.position, later)
    assert rest.changes["t"].rows.column("id").to_pylist() == [2]


def test_a_reader_far_behind_takes_pieces(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)")
    capture = begin("t")
    with shop.owner() as early:
        early.execute("BEGIN; INSERT INTO t VALUES (0)")
        capture.tick()
        for i in range(1, 11):
            run(shop, f"INSERT INTO t VALUES ({i})")
        early.execute("COMMIT")
    pieces = 0
    while True:
        final, bags, tables = capture.cut()
        new = next_position(capture.connection, shop.slot, capture.position, final.snapshot, catch_up=(0, 9))
        batch = read_wal(capture.connection, shop.slot, tables, capture.position, new)
        capture.land(batch)
        pieces += 1
        if new.snapshot == final.snapshot:
            break
    assert capture.bags == bags
    assert pieces == 4  # three messages a transaction and one for the table


def test_asynchronous_commits_are_flushed_before_they_count_as_read(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)")
    capture = begin("t")
    with shop.owner() as owner:
        owner.execute("SET synchronous_commit = off")
        for i in range(50):
            owner.execute("INSERT INTO t VALUES (%s)", [i])
            capture.tick()
    assert len(capture.bags["t"]) == 50


def test_a_server_that_is_idle_for_us_lets_its_wal_go(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int, a text)")
    capture = begin("t")
    before = capture.position.lsn
    run(shop, "INSERT INTO other SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    batch = capture.tick()
    assert not batch.changes
    assert capture.position.lsn > before + 100_000


def test_an_error_on_the_way_leaves_the_connection_of_use(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (a int)", "INSERT INTO t VALUES (1, 1)")
    run(shop, "ALTER TABLE u REPLICA IDENTITY FULL")
    capture = begin("t", "u")
    run(shop, "UPDATE t SET a = 5", "INSERT INTO u SELECT generate_series(1, 50000)")
    new, _, tables = capture.cut()
    keyless = [replace(t, key=(), is_full=True) for t in tables]  # as if it had been FULL
    with pytest.raises(MillstreamError) as caught:
        read_wal(capture.connection, shop.slot, keyless, capture.position, new)
    assert caught.value.code is Code.CAPTURE_LOST
    assert capture.connection.execute("SELECT 1").fetchone() == (1,)
    capture.tick()


def test_a_table_without_a_key_gets_the_statement_that_makes_it_eligible(shop: WalShop) -> None:
    run(shop, "CREATE TABLE t (a int)", "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    run(shop, "CREATE TABLE d (id int PRIMARY KEY DEFERRABLE)", "CREATE TABLE k (id int PRIMARY KEY, a int)")
    has_generated = shop.server_version >= 18
    if has_generated:
        run(shop, "CREATE TABLE v (a int, g int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
        run(shop, "ALTER TABLE v REPLICA IDENTITY FULL")
    run(shop, "CREATE TABLE g (id int PRIMARY KEY, a int, d int GENERATED ALWAYS AS (a * 2) STORED)")
    run(shop, "CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (parent)")
    with shop.connect() as connection:

        def remedies(name: str, *columns: str) -> list[str]:
            relation = find_relation(connection, name)
            tables, hindrances = wal_tables(connection, [("x", relation, mirror_columns(relation, columns or None))])
            assert bool(tables) != bool(hindrances)
            return [o.remedy for o in hindrances]

        assert remedies("t") == ['ALTER TABLE "public"."t" REPLICA IDENTITY FULL']
        assert remedies("u") == ['ALTER TABLE "public"."u" SET LOGGED']
        assert remedies("d") == ['ALTER TABLE "public"."d" REPLICA IDENTITY FULL']
        assert remedies("k", "a") == ["use the column in a query, or set REPLICA IDENTITY FULL"]
        assert remedies("k") == []
        if has_generated:
            assert remedies("v", "a") == ['ALTER TABLE "public"."v" REPLICA IDENTITY DEFAULT']
        assert bool(remedies("g")) != has_generated
        assert remedies("g", "id", "a") == []
        assert "use partitions instead of inheritance" in remedies("parent")


def test_generated_columns_are_published_where_the_server_can(shop: WalShop, begin: Begin) -> None:
    if shop.server_version < 18:
        pytest.skip("before PostgreSQL 18 they are not in the WAL, and such tables are refused")
    run(shop, "CREATE TABLE g (id int PRIMARY KEY, a int, d int GENERATED ALWAYS AS (a * 2) STORED)")
    run(shop, "ALTER TABLE g REPLICA IDENTITY FULL", "INSERT INTO g VALUES (1, 1)")
    capture = begin("g")
    run(shop, "UPDATE g SET a = 5", "INSERT INTO g VALUES (2, 7)")
    capture.tick()
    assert len(capture.bags["g"]) == 2
