"""No change is lost or doubled under load, buffers are trimmed to what was read, and idle tables cost little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from kits.naive_captures import LsnCapture, ReadCommittedCapture, StandbyCapture, VisibilityCapture
from kits.shops import Shop
from kits.stress import DEEDS, TABLES, Stress, compare, create_tables, run, truncate
from kits.trigger_capture import Capture, TriggerCapture, polled
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffer_changes import changed_buffers, read_changes, trim
from millstream.sources.postgres.triggers.buffers import install, remove
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo
from millstream.sources.postgres.values.types import mirror_columns
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

WITHOUT_TRUNCATE = tuple((deed, weight) for deed, weight in DEEDS if deed is not truncate)


@pytest.fixture
def standby(server: Server) -> Iterator[Server]:
    with Server(primary=server) as started:
        yield started


def test_no_change_is_lost_or_doubled(shop: Shop) -> None:
    create_tables(shop)
    capture = TriggerCapture(shop, TABLES, check_every=3)
    stress = Stress(shop, seed=time.time_ns() % 1_000_000)
    drains = run(shop, capture, stress, seconds=8)
    capture.close()
    assert drains >= 3
    assert capture.changes > 500
    assert capture.truncations > 0
    assert min(stress.ends[end] for end in ("COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED")) > 0


@pytest.mark.long
def test_no_change_is_lost_or_doubled_of_a_hundred_thousand(shop: Shop) -> None:
    create_tables(shop)
    capture = TriggerCapture(shop, TABLES, check_every=3)
    stress = Stress(shop, seed=time.time_ns() % 1_000_000, writers=6)
    run(shop, capture, stress, changes=100_000, drain_seconds=2)
    capture.close()
    assert capture.changes >= 100_000


def test_the_right_rule_holds_by_the_means_of_the_naive_ones(shop: Shop) -> None:
    create_tables(shop, has_partitions=False)
    capture = VisibilityCapture(shop, TABLES)
    run(shop, capture, Stress(shop, seed=1, deeds=WITHOUT_TRUNCATE), seconds=3)
    capture.close()


@pytest.mark.parametrize("naive", [LsnCapture, ReadCommittedCapture])
def test_naive_captures_are_found_out(shop: Shop, naive: Callable[[Shop, tuple[str, ...]], Capture]) -> None:
    _assert_loses(shop, lambda: naive(shop, TABLES))


def test_a_standby_cannot_be_polled(shop: Shop, standby: Server) -> None:
    _assert_loses(shop, lambda: StandbyCapture(shop, TABLES, standby))
    with connect(Address.parse(standby.url(shop.name))) as connection:
        with pytest.raises(MillstreamError) as caught, polled(connection):
            pass
        assert caught.value.code is Code.DATABASE_UNFIT


def _assert_loses(shop: Shop, begin: Callable[[], Capture]) -> None:
    create_tables(shop, has_partitions=False)
    capture = begin()
    with pytest.raises(AssertionError, match="missing"):
        run(shop, capture, Stress(shop, seed=1, deeds=WITHOUT_TRUNCATE), seconds=30)
    for _ in range(3):  # nor does it come later
        capture.poll()
    with pytest.raises(AssertionError, match="missing"):
        compare(shop, capture, TABLES, "in the end")
    capture.close()


def _captured(shop: Shop, *names: str) -> tuple[BufferInfo, ...]:
    with shop.connect() as connection:
        relations = [find_relation(connection, name) for name in names]
        return tuple(install(connection, r, mirror_columns(r)) for r in relations)


def _count(shop: Shop, buffer: BufferInfo) -> int:
    with shop.connect() as connection:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(buffer.table)).fetchone()
    assert row is not None
    return int(row[0])


def test_one_snapshot_cuts_all_tables(shop: Shop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE a (v int)")
        owner.execute("CREATE TABLE b (v int)")
        a, b = _captured(shop, "a", "b")
        columns = mirror_columns(find_relation(connection, "a"))
        with polled(connection) as old:
            pass
        with polled(connection) as new:
            with owner.transaction():
                owner.execute("INSERT INTO a VALUES (1)")
                owner.execute("INSERT INTO b VALUES (1)")
            assert read_changes(connection, b, columns, old, new).is_empty
        with polled(connection) as later:
            windows = [read_changes(connection, x, columns, new, later) for x in (a, b)]
        assert [w.rows.to_pylist() for w in windows] == [[{"v": 1, "__ms_w": 1}]] * 2


def test_trimming_deletes_exactly_what_was_read(shop: Shop) -> None:
    with shop.owner() as owner, shop.owner() as late, shop.connect() as connection:
        owner.execute("CREATE TABLE t (a int)")
        (buffer,) = _captured(shop, "t")
        columns = mirror_columns(find_relation(connection, "t"))
        late.autocommit = False
        late.execute("INSERT INTO t VALUES (1)")  # old, and not yet read
        owner.execute("INSERT INTO t SELECT generate_series(2, 5)")
        with polled(connection) as read:
            pass
        owner.execute("INSERT INTO t VALUES (6)")
        assert trim(connection, [buffer], read) == 4  # although an older transaction is still open
        late.commit()
        assert _count(shop, buffer) == 2
        assert trim(connection, [buffer], read) == 0
        with polled(connection) as now:
            assert sorted(read_changes(connection, buffer, columns, read, now).rows["a"].to_pylist()) == [1, 6]
        assert trim(connection, [buffer], now) == 2
        assert trim(connection, [buffer], now) == 0


def test_trimming_a_large_buffer_goes_in_steps(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.sources.postgres.triggers.buffer_changes._TRIM_BLOCKS", 8)
    monkeypatch.setattr("millstream.sources.postgres.triggers.buffer_changes._VACUUM_ROWS", 1_000)
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (a int)")
        (buffer,) = _captured(shop, "t")
        owner.execute("INSERT INTO t SELECT generate_series(1, 20000)")
        with polled(connection) as read:
            pass
        assert trim(connection, [buffer], read) == 20_000
        assert _count(shop, buffer) == 0
        size = connection.execute("SELECT pg_relation_size(%s)", [buffer.table.as_string()]).fetchone()
        assert size == (0,)  # a later poll reads nothing


def test_nobody_waits_for_trimming_and_trimming_for_nobody(shop: Shop) -> None:
    with shop.owner() as owner, shop.owner() as late, shop.connect() as connection:
        owner.execute("CREATE TABLE t (a int)")
        (buffer,) = _captured(shop, "t")
        owner.execute("INSERT INTO t VALUES (1)")
        with polled(connection) as read:
            pass
        late.autocommit = False
        late.execute("INSERT INTO t VALUES (2)")
        with connection.transaction():  # trimmed, and not yet committed
            trim(connection, [buffer], read)
            done = threading.Event()

            def write() -> None:
                with shop.owner() as writer:
                    writer.execute("SET statement_timeout = '5s'")
                    writer.execute("INSERT INTO t VALUES (3)")
                    writer.execute("DELETE FROM t WHERE a = 3")
                done.set()

            thread = threading.Thread(target=write)
            thread.start()
            assert done.wait(5)
            thread.join()
        late.commit()
        assert _count(shop, buffer) == 3


def test_fifty_tables_without_changes_cost_one_small_query(shop: Shop) -> None:
    names = [f"t{i}" for i in range(50)]
    with shop.owner() as owner, shop.connect() as connection:
        for name in names:
            owner.execute(f"CREATE TABLE {name} (a int, b text)")
        owner.execute("CREATE TABLE other (a int)")
        buffers = _captured(shop, *names)
        took = []
        for _ in range(20):
            with polled(connection) as old:
                pass
            owner.execute("INSERT INTO other VALUES (1)")
            begun = time.perf_counter()
            with polled(connection) as new:
                assert new != old
                assert changed_buffers(connection, buffers, old, new) == {}
            took.append(time.perf_counter() - begun)
        owner.execute("INSERT INTO t7 VALUES (1)")
        with polled(connection) as new:
            assert set(changed_buffers(connection, buffers, old, new)) == {buffers[7].oid}
        with polled(connection) as again:
            assert again == new  # and a tick that finds this has nothing to ask
    assert sorted(took)[10] < 0.05, took  # 5 ms are the aim; a loaded machine may be slower
    print(f"median {1000 * sorted(took)[10]:.1f} ms")


def test_a_lost_connection_loses_nothing(shop: Shop) -> None:
    with shop.owner() as owner, shop.server.superuser(shop.name) as superuser:
        owner.execute("CREATE TABLE t (a int)")
        capture = TriggerCapture(shop, ["t"], check_every=2)
        capture.start()
        owner.execute("INSERT INTO t VALUES (1)")
        superuser.execute("SELECT pg_terminate_backend(%s)", [capture.connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            capture.poll()
        capture.connection = shop.connect()
        owner.execute("INSERT INTO t VALUES (2)")
        capture.poll()
        assert set(capture.bags["t"]) == {(1,), (2,)}
        capture.close()


def test_a_buffer_that_is_gone_is_a_coded_error(shop: Shop) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (a int)")
        (buffer,) = _captured(shop, "t")
        columns = mirror_columns(find_relation(connection, "t"))
        with polled(connection) as old:
            pass
        remove(connection, buffer.oid)
        for read in (
            lambda: read_changes(connection, buffer, columns, old, old),
            lambda: changed_buffers(connection, [buffer], old, old),
            lambda: trim(connection, [buffer], old),
        ):
            with pytest.raises(MillstreamError) as caught:
                read()
            assert caught.value.code is Code.CAPTURE_LOST
