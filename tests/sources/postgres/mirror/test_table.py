"""Landing Z-sets in a mirror without a JVM: for any rows, the mirror is what it should be, or an error is raised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from millstream import Code, MillstreamError, naming
from millstream.engine.storage import DeltaStore, RangeKind, Txn
from millstream.engine.storage.files.schema import arrow_schema
from millstream.settings import Settings
from millstream.sources.postgres.mirror.table import Mirror, land, resync

SCHEMA = StructType(
    [
        StructField("k", LongType()),
        StructField("s", StringType()),
        StructField("d", DoubleType()),
        StructField("a", ArrayType(LongType())),
    ]
)
Row = tuple[Any, ...]


class Table:
    """A mirror and what it should hold."""

    def __init__(self, directory: Path, key: tuple[str, ...] = ()) -> None:
        self.store = DeltaStore(None, Settings())  # type: ignore[arg-type]
        self.mirror = Mirror("shop.public.t", str(directory), key)
        self.store.create(self.mirror.path, SCHEMA, stats_columns=key)
        self.ticks = 0

    def land(self, *rows: tuple[int, Row], truncated: bool = False) -> int | None:
        self.ticks += 1
        return land(self.store, self.mirror, zset(*rows), Txn("t", self.ticks), {}, 50_000, truncated=truncated)

    def resync(self, *rows: Row) -> int | None:
        self.ticks += 1
        contents = zset(*((1, r) for r in rows)).drop_columns([naming.WEIGHT])
        return resync(self.store, self.mirror, contents, Txn("t", self.ticks), {}, 50_000)

    @property
    def bag(self) -> Counter[str]:
        found = self.store.rows(self.mirror.path, self.store.version(self.mirror.path), 50_000)
        assert found is not None
        return bag(tuple(row.values()) for row in found.to_pylist())


def zset(*rows: tuple[int, Row]) -> pa.Table:
    schema = arrow_schema(SCHEMA)
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for _, row in rows], schema=schema)
    return table.append_column(naming.WEIGHT, pa.array([w for w, _ in rows], pa.int64()))


def bag(rows: Any) -> Counter[str]:
    """By their texts, which distinguish -0.0 from 0.0 and show NaN as equal to itself."""
    return Counter(map(repr, rows))


@pytest.fixture
def keyed(tmp_path: Path) -> Table:
    return Table(tmp_path / "keyed", ("k",))


@pytest.fixture
def keyless(tmp_path: Path) -> Table:
    return Table(tmp_path / "keyless")


A, B = (1, "a", 0.5, [1, None]), (2, "b", None, None)


def test_rows_come_change_and_go(keyed: Table) -> None:
    assert keyed.land((1, A), (1, B)) == 1
    after = (1, "z", 0.5, [])
    keyed.land((-1, A), (1, after), (-1, B))
    assert keyed.bag == bag([after])
    summary = keyed.store.classify(keyed.mirror.path, 1, 2)
    assert (summary.kind, summary.changed_rows) == (RangeKind.MUTATING, 2), "an update counts once"


def test_what_comes_to_nothing_is_no_commit(keyed: Table, keyless: Table) -> None:
    for table in (keyed, keyless):
        table.land((1, A))
        assert table.land((-1, A), (1, A), (1, B), (-1, B)) is None
        assert table.land() is None
        assert table.resync(A) is None
        assert table.land((1, A), truncated=True) is None, "truncated and loaded again with the same rows"


def test_of_equal_rows_as_many_as_go(keyless: Table) -> None:
    keyless.land((5, A), (1, B))
    keyless.land((-2, A), (-1, A), (1, B))
    assert keyless.bag == bag([A, A, B, B])


def test_zeros_and_nans_are_what_their_bits_are(keyless: Table) -> None:
    plus, minus, nan = (1, "x", 0.0, None), (1, "x", -0.0, None), (1, "x", float("nan"), None)
    keyless.land((1, plus), (1, minus), (1, nan))
    keyless.land((-1, minus), (-1, nan), (1, nan))
    assert keyless.bag == bag([plus, nan])
    keyless.land((-1, nan), (-1, plus), (1, minus))
    assert keyless.bag == bag([minus])


@pytest.mark.parametrize("row", [(3, "c", None, None), (1, "a", 0.5, [1])])
def test_a_row_that_is_not_there(keyless: Table, row: Row) -> None:
    keyless.land((1, A))
    with pytest.raises(MillstreamError) as caught:
        keyless.land((-1, row))
    assert caught.value.code is Code.CAPTURE_LOST
    assert keyless.bag == bag([A])


def test_a_key_that_is_not_there(keyed: Table) -> None:
    keyed.land((1, A))
    with pytest.raises(MillstreamError) as caught:
        keyed.land((-1, B), (1, (2, "c", None, None)))
    assert caught.value.code is Code.CAPTURE_LOST


def test_fewer_copies_than_go(keyless: Table) -> None:
    keyless.land((2, A))
    with pytest.raises(MillstreamError) as caught:
        keyless.land((-3, A))
    assert caught.value.code is Code.CAPTURE_LOST


def test_truncated(keyed: Table) -> None:
    keyed.land((1, A), (1, B))
    keyed.land((1, B), (1, (3, "c", None, None)), truncated=True)
    assert keyed.bag == bag([B, (3, "c", None, None)])
    keyed.land(truncated=True)
    assert keyed.bag == bag([])


def test_a_large_mirror_is_replaced_when_truncated(tmp_path: Path) -> None:
    table = Table(tmp_path / "large")
    table.land(*((1, (i, "x", None, None)) for i in range(20)))
    version = land(table.store, table.mirror, zset((2, B)), Txn("t", 99), {}, 10, truncated=True)
    assert version is not None
    assert table.bag == bag([B, B])
    assert table.store.classify(table.mirror.path, 1, version).kind is RangeKind.REPLACED


ROWS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["x", "y", None]),
    st.sampled_from([0.0, -0.0, 1.5, float("nan"), None]),
    st.sampled_from([None, [], [1], [None]]),
)


@given(st.lists(st.lists(ROWS, max_size=8), min_size=1, max_size=4), st.booleans())
def test_any_bags_in_turn(tmp_path_factory: pytest.TempPathFactory, bags: list[list[Row]], diff: bool) -> None:
    table = Table(tmp_path_factory.mktemp("t") / "t")
    before: list[Row] = []
    for rows in bags:
        if diff:
            table.resync(*rows)
        else:
            table.land(*((-1, r) for r in before), *((1, r) for r in rows))
        assert table.bag == bag(rows)
        before = rows
