"""The daemon beside databases that do not answer, or cannot be written: nothing else waits for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.daemon import running, status_of, until
from kits.lake import Lake, open_lake
from kits.shops import Shop
from millstream import Code, MillstreamError, Status
from millstream.naming import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake with one slot, a table of its own, and an attached database with another."""
    with shop.owner() as owner:
        owner.execute("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        owner.execute("INSERT INTO orders VALUES (1, 10)")
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    monkeypatch.setenv("SHOP_URL", str(shop.address.conninfo()))
    options = {"scheduler_interval_ms": 100, "max_consecutive_errors": 2, "parallel_refresh_mode": "off"}
    with open_lake(tmp_path / "lake", **options) as opened:
        opened.table("t", "k STRING, v INT", "'a', 1")
        opened.ms.attach("shop", "env:SHOP_URL", cdc="trigger")
        yield opened


def test_a_database_that_never_answers_delays_no_other_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.ms.create_stream_table("captured", "SELECT id, amount FROM shop.public.orders", schedule="1s")
    lake.ms.create_stream_table("sums", SUMS, schedule="1s")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections, and says nothing
        monkeypatch.setenv("SHOP_URL", f"postgresql://millstream@127.0.0.1:{silent.getsockname()[1]}/shop")
        lake.ms._connections.disconnect("shop")
        with running(lake.ms) as daemon:
            until(lambda: "captured" in daemon.activities[-1].running if daemon.activities else None)
            began = daemon.activities[-1].running["captured"]
            lake.insert("t", "'c', 5")
            until(lambda: lake.rows("sums")[("c", 5)])
            assert daemon.activities[-1].running["captured"] == began  # it still waits for an answer
            until(lambda: lake.last("captured").error_message)
        assert not daemon.errors
    [record] = lake.ms._catalog.history(TableName.parse("captured"), 1)
    assert record.error_code == Code.DATABASE_UNREACHABLE
    assert status_of(lake.ms, "captured").consecutive_errors == 0  # it is transient


def test_a_table_that_cannot_be_served_is_retried_and_ends_in_error(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("sums", SUMS, schedule="1s", serve_to="shop.public.sums")
    lake.ms.create_stream_table("above", "SELECT COUNT(*) AS n FROM sums", schedule="1s")
    query(shop, "ALTER TABLE public.sums RENAME TO hidden")
    lake.insert("t", "'c', 5")
    with running(lake.ms) as daemon:
        until(lambda: lake.rows("above")[(2,)])  # what reads it does not wait
        until(lambda: status_of(lake.ms, "sums").status is Status.ERROR)
        failures = [r for r in lake.ms.refresh_history("sums", 100) if r.error_message]
        assert len(failures) == 2
        assert (failures[0].start_time - failures[1].start_time).total_seconds() > 0.7  # the first backoff is 1 s
        assert "auto_suspended" in [str(e.event) for e in lake.ms.events()]
        query(shop, "ALTER TABLE public.hidden RENAME TO sums")
        lake.ms.alter_stream_table("sums", status="ACTIVE")
        until(lambda: ("c", 5) in query(shop, "SELECT * FROM public.sums"))
        assert status_of(lake.ms, "sums").status is Status.ACTIVE
    assert not daemon.errors


def test_serving_that_waits_for_a_lock_is_cancelled(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("sums", SUMS, serve_to="shop.public.sums")
    lake.insert("t", "'c', 5")
    errors: list[MillstreamError] = []

    def refresh() -> None:
        try:
            lake.ms.refresh_stream_table("sums")
        except MillstreamError as error:
            errors.append(error)

    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with shop.server.superuser(shop.name) as blocker:
        blocker.autocommit = False
        blocker.execute("LOCK TABLE public.sums")
        thread = threading.Thread(target=refresh)
        thread.start()
        until(lambda: query(shop, waits) != [(0,)])
        assert lake.ms.cancel("sums")
        start = time.monotonic()
        thread.join(60)
        assert time.monotonic() - start < 5  # sooner than the lock would time out
        blocker.rollback()
    assert [e.code for e in errors] == [Code.REFRESH_CANCELLED]
    assert lake.rows("sums")[("c", 5)]  # the table itself was refreshed
    assert status_of(lake.ms, "sums").consecutive_errors == 0
    lake.ms.refresh_stream_table("sums")
    assert ("c", 5) in query(shop, "SELECT * FROM public.sums")


def query(shop: Shop, text: str) -> list[tuple[Any, ...]]:
    with shop.server.superuser(shop.name) as connection:
        done = connection.execute(text)
        return [tuple(r) for r in done.fetchall()] if done.description else []
