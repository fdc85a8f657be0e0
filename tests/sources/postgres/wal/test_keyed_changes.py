"""Changes whose old rows are known by their key only, completed from the mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kits.wal_shops import WalCapture, WalShop, new_wal_shop
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges
from millstream.sources.postgres.wal.reader import read_wal
from millstream.sources.postgres.wal.slot import drop_slot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

WIDE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 400))"  # lies outside its row

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


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_untouched_values_outside_the_row(shop: WalShop, begin: Begin, identity: str) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY, n int, wide text)", f"ALTER TABLE t REPLICA IDENTITY {identity}")
    run(shop, f"INSERT INTO t SELECT i, 0, {WIDE} FROM generate_series(1, 6) i")
    capture = begin("t")
    run(shop, "UPDATE t SET n = 1 WHERE id = 1")  # from the mirror
    run(shop, "UPDATE t SET n = 2 WHERE id = 2", "UPDATE t SET n = 3 WHERE id = 2")  # from the mirror, twice removed
    run(shop, f"UPDATE t SET wide = {WIDE} WHERE id = 3", "UPDATE t SET n = 4 WHERE id = 3")  # from the same window
    run(shop, "UPDATE t SET id = 40 WHERE id = 4", "UPDATE t SET id = 41, n = 5 WHERE id = 40")  # by an older key
    swap = ["UPDATE t SET id = 0 WHERE id = 5", "UPDATE t SET id = 5 WHERE id = 6", "UPDATE t SET id = 6 WHERE id = 0"]
    run(shop, "; ".join(swap))
    run(shop, f"INSERT INTO t VALUES (9, 0, {WIDE})", "UPDATE t SET n = 9 WHERE id = 9")
    capture.tick()
    if identity == "DEFAULT":
        window = capture.batches[-1].changes["t"]
        assert isinstance(window, KeyedTableChanges)
        assert len(window.gaps) == 5
    run(shop, f"TRUNCATE t; INSERT INTO t VALUES (1, 0, {WIDE}); UPDATE t SET n = 8")
    capture.tick()


def test_a_long_key_that_lies_outside_its_row(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (k text PRIMARY KEY, n int, w text)", "ALTER TABLE t ALTER k SET STORAGE EXTERNAL")
    run(shop, "INSERT INTO t SELECT repeat(i::text, 2500), 0, repeat('w', 9000) FROM generate_series(1, 3) i")
    capture = begin("t")
    run(shop, "UPDATE t SET n = n + 1", "UPDATE t SET n = n + 1 WHERE k LIKE '2%'", "DELETE FROM t WHERE k LIKE '3%'")
    capture.tick()


def test_keys_that_are_equal_but_not_the_same(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (a numeric, b float8, n int, PRIMARY KEY (a, b))")
    run(shop, "INSERT INTO t VALUES (1.0, 0, 1), (2, 'NaN', 2)")
    capture = begin("t")
    run(
        shop,
        "UPDATE t SET a = 1.000 WHERE n = 1",
        "UPDATE t SET b = '-0' WHERE n = 1",
        "UPDATE t SET n = 3 WHERE n = 2",
    )
    new, _, tables = capture.cut()
    batch = read_wal(capture.connection, shop.slot, tables, capture.position, new)
    window = batch.changes["t"]
    assert isinstance(window, KeyedTableChanges)
    assert window.existing == 2
    assert window.rows.num_rows == 2
    assert window.keys.num_rows == 4


def test_another_index_as_identity(shop: WalShop, begin: Begin) -> None:
    run(
        shop,
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, region int NOT NULL, n int)",
        "CREATE UNIQUE INDEX by_code ON t (region, code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
        "INSERT INTO t SELECT i, 'c' || i, i % 2, 0 FROM generate_series(1, 6) i",
    )
    capture = begin("t")
    assert capture.tables(capture.connection)[0].key == ("region", "code")
    run(
        shop,
        "UPDATE t SET id = id + 50 WHERE id < 3",
        "UPDATE t SET code = 'x' WHERE id = 4",
        "DELETE FROM t WHERE id = 6",
    )
    capture.tick()


def test_a_changed_identity_is_read_by_the_key(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    capture = begin("t")
    run(
        shop,
        "UPDATE t SET a = 5 WHERE id = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET a = 6 WHERE id = 2",
    )
    assert capture.tables(capture.connection)[0].is_full
    capture.tick()
    assert isinstance(capture.batches[-1].changes["t"], KeyedTableChanges)
    run(shop, "DELETE FROM t WHERE id = 2")
    capture.tick()
    assert isinstance(capture.batches[-1].changes["t"], TableChanges)


def test_a_row_that_the_mirror_lost_is_noticed(shop: WalShop, begin: Begin) -> None:
    run(shop, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    capture = begin("t")
    capture.mirrors["t"].counts.clear()
    run(shop, "UPDATE t SET a = 2")
    with pytest.raises(MillstreamError) as caught:
        capture.tick()
    assert caught.value.code is Code.CAPTURE_LOST
