"""The initial load on the driver: several chunks at a time, with progress, and only where the table is small enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kits.shops import Shop
from kits.table_loads import at_once, bag, fill, relation_of, writers
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.load import initial_load
from millstream.sources.postgres.load.chunks import chunks
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small

pytestmark = pytest.mark.postgres


def test_a_value_without_a_counterpart_ends_the_reading(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, d date)")
        owner.execute("INSERT INTO t VALUES (1, 'infinity')")
    relation, columns = relation_of(shop, "t")
    with pytest.raises(MillstreamError) as caught, ExportedSnapshot(shop.address, [relation]) as snapshot:
        read_small(snapshot, relation, columns)
    assert caught.value.code is Code.VALUE_UNSUPPORTED


def test_the_driver_reads_several_pieces_side_by_side(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    monkeypatch.setattr(initial_load, "chunks", lambda *_, **__: chunks(*_, target_rows=500))
    reported: list[tuple[int, int]] = []
    with writers(shop, "t"), ExportedSnapshot(shop.address, [relation]) as snapshot:
        rows = read_small(snapshot, relation, columns, lambda done, of: reported.append((done, of)))
        assert rows is not None
        assert bag(rows) == at_once(snapshot, relation)
        assert reported[-1][0] == rows.num_rows
    with shop.owner() as owner:
        owner.execute("ALTER TABLE t ADD COLUMN d date DEFAULT '2024-01-01'")
        owner.execute("UPDATE t SET d = 'infinity' WHERE id = 4999")
    relation, columns = relation_of(shop, "t")
    with pytest.raises(MillstreamError) as caught, ExportedSnapshot(shop.address, [relation]) as snapshot:
        read_small(snapshot, relation, columns)
    assert caught.value.code is Code.VALUE_UNSUPPORTED


def test_progress_ends_with_all_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
        fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    monkeypatch.setattr(initial_load, "chunks", lambda *_, **__: chunks(*_, target_rows=500))
    reported: list[tuple[int, int]] = []
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        read_small(snapshot, relation, columns, lambda done, of: reported.append((done, of)))
    assert reported == sorted(reported)
    assert reported[-1] == (5_000, 5_000)


def test_a_table_too_large_for_the_driver_is_left_to_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, k int, v text)")
    fill(shop, "t", 5_000)
    relation, columns = relation_of(shop, "t")
    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        assert read_small(snapshot, relation, columns) is not None
        with monkeypatch.context() as context:
            context.setattr(initial_load, "DRIVER_ROWS", 100)
            assert read_small(snapshot, relation, columns) is None
        monkeypatch.setattr(initial_load, "DRIVER_BYTES", 10_000)  # as if it were found out on the way
        monkeypatch.setattr(
            initial_load, "chunks", lambda *_, **__: [replace(c, size_bytes=0) for c in chunks(*_, target_rows=9)]
        )
        assert read_small(snapshot, relation, columns) is None
