"""Maintenance of mirrors, and of stream tables whose served copies lag."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.captured_lake import CapturedLake, open_captured
from kits.shops import Shop
from millstream import Action, MaintenanceKind, MillstreamError
from millstream.naming import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TOTALS = "SELECT k, COUNT(*) AS n, SUM(v) AS s FROM shop.public.t GROUP BY k"


def change(lake: CapturedLake, step: int) -> None:
    lake.run(f"INSERT INTO t VALUES ({1_000 + step}, {step % 5}, {step})", f"UPDATE t SET v = v + 1 WHERE id = {step}")


def files(lake: CapturedLake, directory: str) -> int:
    return sum(1 for f in (lake.root / directory).rglob("*") if f.is_file())


def test_a_mirror_shrinks_and_capture_goes_on(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    with open_captured(tmp_path / "lake", shop, retention_hours=0) as lake:
        lake.run("CREATE TABLE t (id INT PRIMARY KEY, k INT, v INT)")
        lake.run("INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 50) i")
        lake.stream("totals", TOTALS)
        for step in range(25):
            change(lake, step)
            lake.ms.refresh_stream_table("totals")
        before = files(lake, "mirrors")
        results = lake.ms.maintain()
        of_mirror = {r.kind for r in results if r.name == "shop.public.t" and r.skipped is None}
        assert {MaintenanceKind.VACUUM, MaintenanceKind.COMPACT} <= of_mirror
        assert files(lake, "mirrors") < before / 2
        lake.assert_exact("totals")
        change(lake, 30)
        lake.refresh("totals", Action.DIFFERENTIAL)
        lake.ms.maintain()
        change(lake, 31)
        lake.refresh("totals", Action.DIFFERENTIAL)


def test_a_served_table_that_lags_is_brought_forward_by_its_changes(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    with open_captured(tmp_path / "lake", shop, retention_hours=0) as lake:
        lake.run("CREATE TABLE t (id INT PRIMARY KEY, k INT, v INT)")
        lake.run("INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 50) i")
        lake.stream("totals", TOTALS)
        lake.run("GRANT CREATE ON SCHEMA public TO millstream")
        lake.ms.serve_stream_table("totals", "shop.public.served")
        # somebody else's check keeps the served table from being written
        with shop.server.superuser(shop.name) as superuser:
            superuser.execute("ALTER TABLE public.served ADD CONSTRAINT few CHECK (n < 12)")
            for step in range(15):
                change(lake, step)
                with suppress(MillstreamError):  # it was refreshed, but not served
                    lake.ms.refresh_stream_table("totals")
            table = lake.ms._catalog.get(TableName.parse("totals"))
            served = lake.ms._runtime.server.served_version(table)
            assert served is not None
            assert table.public_stage.version is not None
            assert served < table.public_stage.version
            assert MaintenanceKind.VACUUM in {r.kind for r in lake.ms.maintain()}
            superuser.execute("ALTER TABLE public.served DROP CONSTRAINT few")
            change(lake, 40)
            lake.refresh("totals", Action.DIFFERENTIAL)
            found = superuser.execute("SELECT mode FROM millstream.served_tables").fetchall()
            assert found == [("DIFFERENTIAL",)]
            rows = superuser.execute("SELECT k, n, s FROM public.served ORDER BY k").fetchall()
            assert (
                rows == superuser.execute("SELECT k, count(*), sum(v) FROM public.t GROUP BY k ORDER BY k").fetchall()
            )


def test_nothing_is_deleted_while_the_served_database_cannot_answer(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_captured(tmp_path / "lake", shop, retention_hours=0) as lake:
        lake.run("CREATE TABLE t (id INT PRIMARY KEY, k INT, v INT)")
        lake.stream("totals", TOTALS)
        lake.run("GRANT CREATE ON SCHEMA public TO millstream")
        lake.ms.serve_stream_table("totals", "shop.public.served")
        for step in range(8):
            change(lake, step)
            lake.ms.refresh_stream_table("totals")
        with shop.server.superuser("postgres") as superuser:
            superuser.execute(f'ALTER DATABASE "{shop.name}" ALLOW_CONNECTIONS false')
            superuser.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [shop.name])
        results = [r for r in lake.ms.maintain() if r.name == "totals" and r.kind is MaintenanceKind.VACUUM]
        assert len(results) == 1
        assert results[0].skipped is not None
        assert "could not be asked" in results[0].skipped
        with shop.server.superuser("postgres") as superuser:
            superuser.execute(f'ALTER DATABASE "{shop.name}" ALLOW_CONNECTIONS true')
        assert lake.ms.maintain(dry_run=True)[0].skipped is None
