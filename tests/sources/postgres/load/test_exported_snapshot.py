"""An exported snapshot is held until the block ends; readers elsewhere see it, and a lost one is an error."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from psycopg import sql

from kits.shops import Shop
from kits.table_loads import by_pieces, fill, relation_of
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import connect, resolved
from millstream.sources.postgres.load.chunks import chunks, read_chunk
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small

pytestmark = pytest.mark.postgres


def test_a_reader_that_comes_after_the_exporter_has_ended_gets_a_coded_error(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int)")
    relation, columns = relation_of(shop, "t")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns)
    with pytest.raises(MillstreamError) as caught:
        list(read_chunk(snapshot.address, snapshot.name, piece, columns))
    assert caught.value.code is Code.SNAPSHOT_LOST


def test_a_reader_that_has_begun_does_not_need_the_exporter(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 20_000)
    relation, columns = relation_of(shop, "t")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns)
        reading = read_chunk(snapshot.address, snapshot.name, piece, columns, batch_bytes=1_000)
        first = next(reading)
    assert first.num_rows + sum(batch.num_rows for batch in reading) == 20_000


def test_a_lost_exporter_is_noticed_at_the_end(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int)")
    relation, _ = relation_of(shop, "t")
    with (
        shop.server.superuser() as superuser,
        pytest.raises(MillstreamError) as caught,
        ExportedSnapshot(shop.address, [relation]) as snapshot,
    ):
        superuser.execute("SELECT pg_terminate_backend(%s)", [snapshot.connection.info.backend_pid])
    assert caught.value.code is Code.SNAPSHOT_LOST


def test_time_limits_of_the_role_do_not_end_the_snapshot(shop: Shop) -> None:
    with shop.server.superuser(shop.name) as superuser:
        for setting in ("idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout"):
            superuser.execute(
                sql.SQL("ALTER DATABASE {} SET {} = '100ms'").format(sql.Identifier(shop.name), sql.Identifier(setting))
            )
        superuser.execute("CREATE TABLE t (id int, v text)")
        superuser.execute("CREATE VIEW slow AS SELECT id, v, pg_sleep(0.02)::text AS s FROM t")
        superuser.execute("GRANT SELECT ON slow TO millstream")
        superuser.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 20) i")
    relation, columns = relation_of(shop, "slow")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        assert by_pieces(snapshot, relation, columns, 1).num_rows == 20
        threading.Event().wait(0.3)


def test_a_truncation_waits_for_the_snapshot_and_readers_do_not_wait_for_it(shop: Shop) -> None:
    """TRUNCATE does not respect snapshots: a reader who came after it would find nothing."""
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 100)
    relation, columns = relation_of(shop, "t")
    is_done = threading.Event()

    def truncate() -> None:
        with shop.owner() as owner:
            owner.execute("TRUNCATE t")
            is_done.set()

    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        assert by_pieces(snapshot, relation, columns, 10).num_rows == 100
        thread = threading.Thread(target=truncate)
        thread.start()
        assert not is_done.wait(0.5)
        with pytest.raises(MillstreamError) as caught:  # not after an hour, nor never
            by_pieces(snapshot, relation, columns, 10)
        assert caught.value.code is Code.LOCK_TIMEOUT
    thread.join()
    assert is_done.is_set()


def test_the_snapshot_is_not_older_than_the_locks(shop: Shop) -> None:
    with shop.owner() as owner, shop.owner() as other:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
        fill(shop, "t", 10)
        relation, columns = relation_of(shop, "t")
        with owner.transaction():
            owner.execute("TRUNCATE t")
            owner.execute("INSERT INTO t VALUES (1, 1, 'after')")
            seen: list[Any] = []

            def read() -> None:
                with ExportedSnapshot(shop.address, [relation]) as snapshot:
                    seen.extend(by_pieces(snapshot, relation, columns, 100).to_pylist())

            thread = threading.Thread(target=read)
            thread.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
            while not (row := other.execute(waiting).fetchone()) or not row[0]:
                pass
        thread.join()
    assert seen == [{"id": 1, "k": 1, "v": "after"}]


def test_another_snapshot_can_be_held_on_to(shop: Shop) -> None:
    """As that of a new replication slot, which ends with the next command."""
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 10)
    relation, columns = relation_of(shop, "t")
    with shop.connect() as exporting:
        exporting.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = exporting.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        fill(shop, "t", 10)
        with ExportedSnapshot(shop.address, [relation], take=lambda: str(row[0])) as snapshot:
            exporting.execute("ROLLBACK")
            assert snapshot.position == row[1]
            assert by_pieces(snapshot, relation, columns, 100).num_rows == 10


def test_what_was_forbidden_or_dropped_is_a_coded_error(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int)")
        owner.execute("CREATE TABLE guarded (id int)")
        owner.execute("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY")
        secret, _ = relation_of(shop, "t")
        guarded, columns = relation_of(shop, "guarded")
        owner.execute("REVOKE ALL ON t FROM millstream")
        with pytest.raises(MillstreamError) as caught, ExportedSnapshot(shop.address, [secret]):
            pass
        assert caught.value.code is Code.PRIVILEGE_MISSING
        with pytest.raises(MillstreamError) as caught, ExportedSnapshot(shop.address, [guarded]) as snapshot:
            read_small(snapshot, guarded, columns)
        assert caught.value.code is Code.PRIVILEGE_MISSING
        owner.execute("DROP TABLE t")
        with pytest.raises(MillstreamError) as caught, ExportedSnapshot(shop.address, [secret]):
            pass
        assert caught.value.code is Code.SOURCE_CHANGED


def test_progress_of_readers_elsewhere_is_seen(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 50_000)
    relation, columns = relation_of(shop, "t")
    reported: list[tuple[int, int]] = []
    is_reported = threading.Event()

    def report(done: int, of: int) -> None:
        reported.append((done, of))
        if done:
            is_reported.set()

    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns, 10**9)
        reading = read_chunk(snapshot.address, snapshot.name, piece, columns, batch_bytes=1_000)
        next(reading)  # the server goes on until its buffers are full
        snapshot.report(50_000, report)
        assert is_reported.wait(10)
        assert 0 < reported[-1][0] < 50_000
        for _ in reading:
            pass
    assert reported[-1] == (50_000, 50_000)


def test_a_reader_elsewhere_needs_no_variable_and_no_passfile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("MS_TEST_SHOP", shop.address.reference.replace("millstream@", "millstream:secret@"))
    address = Address.parse("env:MS_TEST_SHOP")
    with connect(address) as connection:
        found = resolved(address, connection)
    monkeypatch.delenv("MS_TEST_SHOP")
    assert "secret" in found.conninfo()
    assert "secret" not in repr(found) + str(found) + f"{found}"
    with connect(pickle.loads(pickle.dumps(found))) as connection:
        assert connection.info.dbname == shop.name

    (tmp_path / "services").write_text(f"[shop]\nhost={shop.server.home}\ndbname={shop.name}\nuser=millstream\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    address = Address.parse("service=shop")
    with connect(address) as connection:
        found = resolved(address, connection)
    monkeypatch.delenv("PGSERVICEFILE")
    with connect(found) as connection:
        assert connection.info.dbname == shop.name
