"""The union of all chunks is the table as of the snapshot, while others write to it."""

from __future__ import annotations

from collections import Counter

import pytest

from kits.shops import Shop
from kits.table_loads import at_once, bag, by_pieces, fill, relation_of, writers
from millstream.sources.postgres.load.chunks import chunks, read_chunk
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small
from millstream.sources.postgres.server.relations import RelationKind
from millstream.sources.postgres.values.decode import batch_schema

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("target_rows", [50, 1_000, 10**9])
def test_pieces_are_the_table_as_of_the_snapshot_while_others_write(shop: Shop, target_rows: int) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    with writers(shop, "t"), ExportedSnapshot(shop.address, [relation]) as snapshot:
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
    with writers(shop, "p"), ExportedSnapshot(shop.address, [relation]) as snapshot:
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
        with ExportedSnapshot(shop.address, [relation]) as snapshot:
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
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        assert bag(by_pieces(snapshot, relation, columns, 10)) == Counter([(1, 1, "p"), (2, 2, "c")])


def test_who_may_read_the_partitioned_table_only_reads_it_in_one_piece(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE p (id int, k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p0 PARTITION OF p DEFAULT")
        owner.execute("REVOKE ALL ON p0 FROM millstream")
    fill(shop, "p", 10)
    relation, columns = relation_of(shop, "p")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        (piece,) = chunks(snapshot.connection, relation, columns, 1)
        assert (piece.source.name, piece.is_only) == ("p", False)
        assert by_pieces(snapshot, relation, columns, 1).num_rows == 10


def test_an_empty_table_has_no_rows_and_all_columns(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k numeric(5,2), v text[])")
    relation, columns = relation_of(shop, "t")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
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
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
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
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
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
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        pieces = chunks(snapshot.connection, relation, columns, 1)
    assert [(c.source.name, c.is_only, c.first_page, c.end_page) for c in pieces] == [
        ("p0", True, None, None),
        ("p1", False, None, None),
    ]
