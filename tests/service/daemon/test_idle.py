"""A daemon with nothing to do: no passes, no Spark jobs, one write per look, and none while nothing is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.daemon import running, until
from kits.lake import Lake, open_lake
from millstream import Action
from millstream.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kits.shops import Shop

pytestmark = pytest.mark.spark

IDLE_SECONDS = 3.5


@contextmanager
def counted_writes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that write the catalog."""
    database, found = catalog._database, list[str]()
    write = database.write

    @contextmanager
    def counted(**options: bool) -> Iterator[object]:
        found.append(threading.current_thread().name)
        with write(**options) as connection:
            yield connection

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", counted)
        yield found


def at_rest(lake: Lake, names: tuple[str, ...]) -> bool:
    """Whether looks suffice for all tables."""
    return all(lake.last(name).action is Action.NO_DATA and lake.last(name).repeats > 2 for name in names)


def job_id(lake: Lake) -> int:
    context = lake.ms.spark.sparkContext
    context.setJobGroup("test", "counts jobs")
    lake.ms.spark.range(1).collect()
    return max(context.statusTracker().getJobIdsForGroup("test"))


def test_an_idle_lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("top", "sums", "later")
    with open_lake(tmp_path / "lake", scheduler_interval_ms=200) as lake:
        lake.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        lake.ms.create_stream_table("top", "SELECT k, v FROM t WHERE v > 0", schedule=None)
        lake.ms.create_stream_table("sums", "SELECT k, SUM(v) AS s FROM top GROUP BY k", schedule="1s")
        lake.ms.create_stream_table("later", "SELECT COUNT(*) AS n FROM t", schedule="1s")
        with running(lake.ms) as daemon:
            until(lambda: at_rest(lake, names))
            first, seen, events = job_id(lake), len(daemon.activities), lake.ms._catalog.pulse().newest_event_id
            with counted_writes(lake.ms._catalog, monkeypatch) as writes:
                time.sleep(IDLE_SECONDS)
            idle = daemon.activities[seen:]
            assert lake.ms._catalog.pulse().newest_event_id == events
            assert job_id(lake) == first + 1
            assert not any(a.decision.passes or a.decision.queued for a in idle)
            # all tables are looked at together, by now: about every 0.9 s; the loop wakes more often than that
            assert 2 <= len(writes) <= 5
            assert len(idle) > 2 * len(writes)
            assert max(s.staleness or 0.0 for s in lake.ms.status()) < 1.5
            lake.insert("t", "'c', 5")
            until(lambda: lake.rows("sums")[("c", 5)])
            until(lambda: lake.rows("later")[(3,)])
        for name in names:
            lake.assert_exact(name)


@pytest.mark.postgres
def test_tables_served_into_the_captured_database_do_not_wake_each_other(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_lake(tmp_path / "lake", scheduler_interval_ms=200) as lake, shop.owner() as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
        owner.execute("CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)")
        owner.execute("INSERT INTO orders VALUES (1, 'n', 10), (2, 's', 20)")
        lake.ms.attach("shop", shop.server.url(shop.name, "millstream"), cdc="trigger")
        totals = "SELECT region, SUM(amount) AS total FROM shop.public.orders GROUP BY region"
        lake.ms.create_stream_table("totals", totals, schedule="1s", serve_to="shop.public.totals")
        lake.ms.create_stream_table("number", "SELECT COUNT(*) AS n FROM shop.public.orders", schedule="1s")
        with running(lake.ms) as daemon:
            until(lambda: at_rest(lake, ("totals", "number")))
            before, seen = written_by_us(shop), len(daemon.activities)
            with counted_writes(lake.ms._catalog, monkeypatch) as writes:
                time.sleep(IDLE_SECONDS)
            assert written_by_us(shop) == before  # no transaction of ours has written anything
            assert not any(a.decision.passes for a in daemon.activities[seen:])
            assert 2 <= len(writes) <= 5
            owner.execute("INSERT INTO orders VALUES (3, 'w', 5)")
            until(lambda: lake.rows("number")[(3,)])
            with shop.connect() as reader:
                until(lambda: reader.execute("SELECT total FROM public.totals WHERE region = 'w'").fetchone() == (5,))


def written_by_us(shop: Shop) -> object:
    """The next transaction id: only a transaction that writes takes one."""
    with shop.owner() as connection:
        return connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
