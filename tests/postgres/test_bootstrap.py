"""The first load: the union of all pieces is the table as of the snapshot, whatever happens to it meanwhile."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from shops import Shop

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres import bootstrap
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.bootstrap import Snapshot, chunks, read_batches, read_chunk, read_small
from millstream.sources.postgres.connection import connect, resolved
from millstream.sources.postgres.decode import batch_schema
from millstream.sources.postgres.relations import Relation, RelationKind, find_relation
from millstream.sources.postgres.types import MirrorColumn, mirror_columns

pytestmark = pytest.mark.postgres


def relation_of(shop: Shop, name: str) -> tuple[Relation, tuple[MirrorColumn, ...]]:
    with shop.connect() as connection:
        found = find_relation(connection, name)
    return found, mirror_columns(found)


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def by_pieces(snapshot: Snapshot, relation: Relation, columns: Sequence[MirrorColumn], target_rows: int) -> pa.Table:
    """All pieces, each read as a worker elsewhere would read it."""
    read: list[pa.RecordBatch] = []
    for piece in chunks(snapshot.connection, relation, columns, target_rows):
        piece, address = pickle.loads(pickle.dumps((piece, snapshot.address)))
        read += read_chunk(address, snapshot.name, piece, columns, batch_bytes=1 << 14)
    return pa.Table.from_batches(read, schema=batch_schema(columns))


def at_once(snapshot: Snapshot, relation: Relation) -> Counter[tuple[Any, ...]]:
    """What the exporting transaction itself sees."""
    everything = sql.SQL("SELECT * FROM {}").format(sql.Identifier(relation.schema, relation.name))
    return Counter(snapshot.connection.execute(everything).fetchall())


@contextmanager
def writers(shop: Shop, table: str, count: int = 3) -> Iterator[None]:
    """Sessions that insert, move, change and delete rows of (id, k, v) all the time, and roll some of it back."""
    stop = threading.Event()

    def write(number: int) -> None:
        with shop.owner() as owner:
            name, turn = sql.Identifier(table), 0
            while not stop.is_set():
                turn += 1
                statements = [
                    sql.SQL("INSERT INTO {} SELECT i, i % 3, 'new' FROM generate_series(1, 50) i").format(name),
                    sql.SQL("UPDATE {} SET v = v || '+', k = (k + 1) % 3 WHERE id % 37 = {}").format(name, turn % 37),
                    sql.SQL("DELETE FROM {} WHERE id % 41 = {} AND v <> 'old'").format(name, turn % 41),
                ]
                try:
                    with owner.transaction(force_rollback=turn % 5 == 0):
                        for statement in statements[number:] + statements[:number]:
                            owner.execute(statement)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                    continue

    with ThreadPoolExecutor(count) as pool:
        writing = [pool.submit(write, n) for n in range(count)]
        try:
            yield
        finally:
            stop.set()
        for future in writing:
            future.result()


def fill(shop: Shop, table: str, rows: int) -> None:
    with shop.owner() as owner:
        query = sql.SQL("INSERT INTO {} SELECT i, i % 3, 'old' FROM generate_series(1, {}) i")
        owner.execute(query.format(sql.Identifier(table), rows))
        owner.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table)))


@pytest.mark.parametrize("target_rows", [50, 1_000, 10**9])
def test_pieces_are_the_table_as_of_the_snapshot_while_others_write(shop: Shop, target_rows: int) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    with writers(shop, "t"), Snapshot(shop.address, [relation]) as snapshot:
        pieces = chunks(snapshot.connection, relation, columns, target_rows)
        assert (len(pieces) > 2) == (target_rows < 5_000)
        first, second = (bag(by_pieces(snapshot, relation, columns, target_rows)) for _ in range(2))
        seen = at_once(snapshot, relation)
    assert sum(seen.values()) >= 5_000
    assert first == second == seen


def test_a_partitioned_table_is_read_leaf_by_leaf(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE p (id int, k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0)")
        owner.execute("CREATE TABLE p1 (v text, gone int, k int, id int)")  # other places of the columns
        owner.execute("ALTER TABLE p1 DROP COLUMN gone")
        owner.execute("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)")
        owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY RANGE (id)")
        owner.execute("CREATE TABLE p2a PARTITION OF p2 FOR VALUES FROM (0) TO (1000)")
        owner.execute("CREATE TABLE p2b PARTITION OF p2 DEFAULT")
    fill(shop, "p", 3_000)
    relation, columns = relation_of(shop, "p")
    assert relation.kind is RelationKind.PARTITIONED
    with writers(shop, "p"), Snapshot(shop.address, [relation]) as snapshot:
        pieces = chunks(snapshot.connection, relation, columns, 200)
        assert {piece.source.name for piece in pieces} == {"p0", "p1", "p2a", "p2b"}
        assert len(pieces) > 4
        assert bag(by_pieces(snapshot, relation, columns, 200)) == at_once(snapshot, relation)


def test_a_partition_attached_since_the_table_was_looked_at_is_read(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE p (id int, k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0)")
        relation, columns = relation_of(shop, "p")
        owner.execute("CREATE TABLE p1 PARTITION OF p DEFAULT")
        fill(shop, "p", 30)
        with Snapshot(shop.address, [relation]) as snapshot:
            owner.execute("CREATE TABLE late (id int, k int, v text)")
            owner.execute("INSERT INTO late VALUES (1, 9, 'late')")
            assert by_pieces(snapshot, relation, columns, 100).num_rows == 30


def test_children_by_inheritance_are_read_once(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE parent (id int, k int, v text)")
        owner.execute("CREATE TABLE child (more int) INHERITS (parent)")
        owner.execute("INSERT INTO parent VALUES (1, 1, 'p')")
        owner.execute("INSERT INTO child VALUES (2, 2, 'c', 5)")
    relation, columns = relation_of(shop, "parent")
    with Snapshot(shop.address, [relation]) as snapshot:
        assert bag(by_pieces(snapshot, relation, columns, 10)) == Counter([(1, 1, "p"), (2, 2, "c")])


def test_who_may_read_the_partitioned_table_only_reads_it_in_one_piece(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE p (id int, k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p0 PARTITION OF p DEFAULT")
        owner.execute("REVOKE ALL ON p0 FROM millstream")
    fill(shop, "p", 10)
    relation, columns = relation_of(shop, "p")
    with Snapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns, 1)
        assert (piece.source.name, piece.is_only) == ("p", False)
        assert by_pieces(snapshot, relation, columns, 1).num_rows == 10


def test_an_empty_table_has_no_rows_and_all_columns(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k numeric(5,2), v text[])")
    relation, columns = relation_of(shop, "t")
    with Snapshot(shop.address, [relation]) as snapshot:
        rows = read_small(snapshot, relation, columns)
    assert rows is not None
    assert rows.num_rows == 0
    assert rows.schema == batch_schema(columns)


def test_rows_added_after_the_snapshot_are_left_out_and_those_before_it_never(shop: Shop) -> None:
    """The pieces are cut while the table is small, and it grows by many pages before they are read."""
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 1_000)
    relation, columns = relation_of(shop, "t")
    with shop.connect() as early:
        pieces = chunks(early, relation, columns, 300)
    fill(shop, "t", 20_000)  # pages that the pieces were not made for
    with Snapshot(shop.address, [relation]) as snapshot:
        fill(shop, "t", 20_000)
        read = [b for piece in pieces for b in read_chunk(snapshot.address, snapshot.name, piece, columns)]
    assert sum(batch.num_rows for batch in read) == 21_000


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
def test_views_are_read_in_one_piece(shop: Shop, kind: str) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
        fill(shop, "t", 1_000)
        owner.execute(f"CREATE {kind} w AS SELECT k, count(*) AS n FROM t GROUP BY k")  # type: ignore[arg-type]
    relation, columns = relation_of(shop, "w")
    with Snapshot(shop.address, [relation]) as snapshot:
        assert len(chunks(snapshot.connection, relation, columns, 1)) == 1
        fill(shop, "t", 1_000)
        assert bag(by_pieces(snapshot, relation, columns, 1)) == Counter([(0, 333), (1, 334), (2, 333)])


def test_a_foreign_table_is_read_in_one_piece(shop: Shop) -> None:
    """postgres_fdw is not in the wheel's server, so the foreign table is one without a handler: planning is enough."""
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE FOREIGN DATA WRAPPER nothing")
        superuser.execute("CREATE SERVER far FOREIGN DATA WRAPPER nothing")
        superuser.execute("CREATE TABLE p (id int, k int, v text) PARTITION BY LIST (k)")
        superuser.execute("CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0)")
        superuser.execute("CREATE FOREIGN TABLE p1 PARTITION OF p FOR VALUES IN (1) SERVER far")
        superuser.execute("GRANT SELECT ON p, p0, p1 TO millstream")
    relation, columns = relation_of(shop, "p")
    with Snapshot(shop.address, [relation]) as snapshot:
        pieces = chunks(snapshot.connection, relation, columns, 1)
    assert [(c.source.name, c.is_only, c.first_page, c.end_page) for c in pieces] == [
        ("p0", True, None, None),
        ("p1", False, None, None),
    ]


def test_a_reader_that_comes_after_the_exporter_has_ended_gets_a_coded_error(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int)")
    relation, columns = relation_of(shop, "t")
    with Snapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns)
    with pytest.raises(MillstreamError) as caught:
        list(read_chunk(snapshot.address, snapshot.name, piece, columns))
    assert caught.value.code is Code.SNAPSHOT_LOST


def test_a_reader_that_has_begun_does_not_need_the_exporter(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 20_000)
    relation, columns = relation_of(shop, "t")
    with Snapshot(shop.address, [relation]) as snapshot:
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
        Snapshot(shop.address, [relation]) as snapshot,
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
    with Snapshot(shop.address, [relation]) as snapshot:
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

    with Snapshot(shop.address, [relation]) as snapshot:
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
                with Snapshot(shop.address, [relation]) as snapshot:
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
        with Snapshot(shop.address, [relation], take=lambda: str(row[0])) as snapshot:
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
        with pytest.raises(MillstreamError) as caught, Snapshot(shop.address, [secret]):
            pass
        assert caught.value.code is Code.PRIVILEGE_MISSING
        with pytest.raises(MillstreamError) as caught, Snapshot(shop.address, [guarded]) as snapshot:
            read_small(snapshot, guarded, columns)
        assert caught.value.code is Code.PRIVILEGE_MISSING
        owner.execute("DROP TABLE t")
        with pytest.raises(MillstreamError) as caught, Snapshot(shop.address, [secret]):
            pass
        assert caught.value.code is Code.SOURCE_CHANGED


def test_a_value_without_a_counterpart_ends_the_reading(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, d date)")
        owner.execute("INSERT INTO t VALUES (1, 'infinity')")
    relation, columns = relation_of(shop, "t")
    with pytest.raises(MillstreamError) as caught, Snapshot(shop.address, [relation]) as snapshot:
        read_small(snapshot, relation, columns)
    assert caught.value.code is Code.VALUE_UNSUPPORTED


def test_the_driver_reads_several_pieces_side_by_side(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    monkeypatch.setattr(bootstrap, "chunks", lambda *_, **__: chunks(*_, target_rows=500))
    told: list[tuple[int, int]] = []
    with writers(shop, "t"), Snapshot(shop.address, [relation]) as snapshot:
        rows = read_small(snapshot, relation, columns, lambda done, of: told.append((done, of)))
        assert rows is not None
        assert bag(rows) == at_once(snapshot, relation)
        assert told[-1][0] == rows.num_rows
    with shop.owner() as owner:
        owner.execute("ALTER TABLE t ADD COLUMN d date DEFAULT '2024-01-01'")
        owner.execute("UPDATE t SET d = 'infinity' WHERE id = 4999")
    relation, columns = relation_of(shop, "t")
    with pytest.raises(MillstreamError) as caught, Snapshot(shop.address, [relation]) as snapshot:
        read_small(snapshot, relation, columns)
    assert caught.value.code is Code.VALUE_UNSUPPORTED


def test_progress_ends_with_all_rows(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
        fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    told: list[tuple[int, int]] = []
    with Snapshot(shop.address, [relation]) as snapshot:
        pieces = chunks(snapshot.connection, relation, columns, 500)
        for _ in read_batches(snapshot, pieces, columns, lambda done, of: told.append((done, of))):
            pass
    assert told == sorted(told)
    assert told[-1] == (5_000, 5_000)


def test_progress_of_readers_elsewhere_is_seen(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 50_000)
    relation, columns = relation_of(shop, "t")
    told: list[tuple[int, int]] = []
    is_told = threading.Event()

    def tell(done: int, of: int) -> None:
        told.append((done, of))
        if done:
            is_told.set()

    with Snapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns, 10**9)
        reading = read_chunk(snapshot.address, snapshot.name, piece, columns, batch_bytes=1_000)
        next(reading)  # the server goes on until its buffers are full
        snapshot.report(50_000, tell)
        assert is_told.wait(10)
        assert 0 < told[-1][0] < 50_000
        for _ in reading:
            pass
    assert told[-1] == (50_000, 50_000)


def test_a_table_too_large_for_the_driver_is_left_to_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    with Snapshot(shop.address, [relation]) as snapshot:
        assert read_small(snapshot, relation, columns) is not None
        assert read_small(snapshot, relation, columns, max_rows=100) is None
        monkeypatch.setattr(bootstrap, "DRIVER_BYTES", 10_000)  # as if it were found out on the way
        monkeypatch.setattr(
            bootstrap, "chunks", lambda *_, **__: [replace(c, size_bytes=0) for c in chunks(*_, target_rows=9)]
        )
        assert read_small(snapshot, relation, columns) is None


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
