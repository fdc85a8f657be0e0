"""Spark's workers read the same rows as the driver, and no plan shows how they reach the server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from kits.shops import Shop
from kits.type_cases import CASES, create_types, exact
from millstream.errors import Code
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small, spark_files, spark_frame
from millstream.sources.postgres.load.spark_reader import coded_error
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.values.types import mirror_columns, mirror_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


def bag(rows: pa.Table) -> Counter[Any]:
    return Counter(repr(exact(list(row.values()))) for row in rows.to_pylist())


def test_workers_read_what_the_driver_reads(
    spark: SparkSession,
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every type in one table: a row per value, and then enough rows for several pieces."""
    create_types(shop)
    columns = ", ".join(f"c{i} {case.type}" for i, case in enumerate(CASES))
    with shop.owner() as owner:
        owner.execute(f"CREATE TABLE t (id int, {columns})")  # type: ignore[arg-type]
        for i, case in enumerate(CASES):
            for text, _ in case.values:
                owner.execute(f"INSERT INTO t (id, c{i}) VALUES (%s, %s)", [i, text])  # type: ignore[arg-type]
        owner.execute("INSERT INTO t (id) SELECT i FROM generate_series(1, 3000) i")
        owner.execute("ANALYZE t")
    monkeypatch.setenv("MS_TEST_SHOP", shop.address.reference.replace("millstream@", "millstream:very-secret@"))
    address = Address.parse("env:MS_TEST_SHOP")
    with connect(address) as connection:
        relation = find_relation(connection, "t")
    mirrored = mirror_columns(relation)
    reported: list[tuple[int, int]] = []
    with ExportedSnapshot(address, [relation]) as snapshot:
        monkeypatch.delenv("MS_TEST_SHOP")  # a worker elsewhere has no such variable
        expected = read_small(snapshot, relation, mirrored)
        assert expected is not None
        read = spark_frame(
            spark, snapshot, relation, mirrored, lambda done, of: reported.append((done, of)), target_rows=1_000
        )
        assert read.schema == mirror_schema(mirrored)
        with shop.owner() as owner:
            owner.execute("INSERT INTO t (id) SELECT i FROM generate_series(1, 3000) i")
        by_workers = read.toArrow()
        files = spark_files(spark, snapshot, relation, mirrored, tmp_path, target_rows=1_000)
        read.explain(extended=True)
    on_driver = spark.createDataFrame(expected, schema=read.schema).toArrow()
    assert bag(by_workers) == bag(on_driver) == bag(expected)
    assert len(files) > 2
    assert sorted(files) == sorted(tmp_path.iterdir())
    written = spark.read.schema(read.schema).parquet(*map(str, files))
    assert bag(written.toArrow()) == bag(expected)
    stored = [pq.read_schema(file) for file in files]
    assert all(schema.names == [c.name for c in mirrored] for schema in stored)
    assert reported[-1][0] == reported[-1][1] > 0
    plans = capfd.readouterr().out
    assert "millstream_postgres" in plans
    assert "very-secret" not in plans


def test_a_worker_s_error_keeps_its_code(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int, d date)")
        owner.execute("INSERT INTO t VALUES (1, 'infinity')")
    with shop.connect() as connection:
        relation = find_relation(connection, "t")
    from pyspark.errors import PySparkException

    with ExportedSnapshot(shop.address, [relation]) as snapshot:
        read = spark_frame(spark, snapshot, relation, mirror_columns(relation))
        for action in (
            read.collect,
            lambda: spark_files(spark, snapshot, relation, mirror_columns(relation), tmp_path),
        ):
            with pytest.raises(PySparkException) as caught:
                action()
            error = coded_error(caught.value)
            assert error is not None
            assert error.code is Code.VALUE_UNSUPPORTED
            assert "column d of public.t has the value infinity" in error.message
            assert error.hint is not None
