"""Many stream tables of mixed schedules under a write load, while leaders are killed and databases go away.

In the end everything is exact, nobody saw two frontiers, a stand-by took over within seconds, and tables that no
failure touched were refreshed in time. The short run is small; the long one is the one that counts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, QueryBuilder

from kits.busy_lake import Definition, Processes, Writers, definitions, make_sources, until, variable, variables
from kits.lake import Lake, open_lake
from kits.lake_process import FAST
from kits.shops import MILLSTREAM, Shop, new_shop
from millstream.results import InitiatedBy, RefreshStatus
from millstream.testing.postgres_server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(3600)]

TAKEOVER_SECONDS = 5.0
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Run:
    """How large a run is.

    Args:
        mishap_seconds: how long after one mishap the next one comes.
        late_seconds: by how much a healthy table may miss a deadline.
    """

    tables: int
    seconds: float
    mishap_seconds: float
    pause_seconds: float
    late_seconds: float


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    """A server for each database, so that one can go away by itself; what is committed survives a crash."""
    with Server() as shop, Server() as store:
        yield {"shop": shop, "store": store}


def test_a_short_load(spark: SparkSession, servers: dict[str, Server], tmp_path: Path) -> None:
    follow(Run(12, 40, 12, 0.25, 30), servers, tmp_path)


@pytest.mark.long
def test_twenty_minutes(spark: SparkSession, servers: dict[str, Server], tmp_path: Path) -> None:
    follow(Run(100, 1200, 30, 0.25, TAKEOVER_SECONDS), servers, tmp_path)


def follow(run: Run, servers: dict[str, Server], tmp_path: Path) -> None:
    root = tmp_path / "lake"
    shops = {name: new_shop(server) for name, server in servers.items()}
    addresses = {variable(name): shop.server.url(shop.name, MILLSTREAM) for name, shop in shops.items()}
    wanted = definitions(run.tables)
    with variables(addresses), open_lake(root, scheduler_interval_ms=200, min_schedule_seconds=1) as lake:
        with (root / "millstream.toml").open("a") as settings:
            settings.write(f"\n{FAST}")
        make_sources(lake, shops)
        for each in wanted:
            lake.ms.create_stream_table(
                each.name, each.query, each.schedule, "DIFFERENTIAL", serve_to=each.serve_to, dialect="spark"
            )
        processes = Processes(root, tmp_path, addresses)
        try:
            calm = under_load(run, lake, servers, shops, processes)
        finally:
            processes.close()
        check(run, lake, shops, wanted, calm)


def under_load(
    run: Run, lake: Lake, servers: dict[str, Server], shops: dict[str, Shop], processes: Processes
) -> list[tuple[datetime, datetime]]:
    """Write, and let mishaps happen; returns the times in which nothing was amiss."""
    catalog = lake.ms._catalog
    takeovers: list[float] = []
    mishaps = itertools.cycle(("kill", "crash shop", "kill", "store goes away"))
    calm: list[tuple[datetime, datetime]] = []

    def lead(epoch: int) -> float:
        return until(lambda: catalog.leadership().epoch >= epoch, PATIENCE_SECONDS, processes.logged)

    processes.start()
    lead(1)
    standby = processes.start()
    until(lambda: "standing by" in standby.read_text(), PATIENCE_SECONDS, processes.logged)
    with Writers(lake, shops, run.pause_seconds) as writers:
        end = time.monotonic() + run.seconds
        while (left := end - time.monotonic()) > 0:
            began = datetime.now(UTC)
            time.sleep(min(left, run.mishap_seconds))
            calm.append((began, datetime.now(UTC)))
            if end - time.monotonic() <= 0:
                break
            match next(mishaps):
                case "kill":
                    found = catalog.leadership()
                    assert found.leader is not None, processes.logged()
                    processes.kill(found.leader.pid)
                    takeovers.append(lead(found.epoch + 1))
                    standby = processes.start()
                    until(lambda log=standby: "standing by" in log.read_text(), PATIENCE_SECONDS, processes.logged)
                case "crash shop":
                    servers["shop"].stop("immediate")
                    servers["shop"].start()
                case _:
                    servers["store"].stop()
                    time.sleep(min(10.0, run.mishap_seconds / 2))
                    servers["store"].start()
    assert not writers.errors
    assert writers.written > run.seconds, "the load wrote next to nothing"
    ended = datetime.now(UTC)
    until(lambda: all_after(lake, ended), PATIENCE_SECONDS, lambda: f"{lake.ms.status()}\n{processes.logged()}")
    assert processes.drain(PATIENCE_SECONDS) == [0, 0], processes.logged()
    assert takeovers, "no leader was killed"
    assert max(takeovers) <= TAKEOVER_SECONDS, takeovers
    return calm


def all_after(lake: Lake, moment: datetime) -> bool:
    """Whether all contents are of a later time."""
    return all(row.data_timestamp is not None and row.data_timestamp > moment for row in lake.ms.status())


def check(
    run: Run, lake: Lake, shops: dict[str, Shop], wanted: list[Definition], calm: list[tuple[datetime, datetime]]
) -> None:
    wrong = [each.name for each in wanted if not (verdict := lake.ms.verify(each.name)).ok or verdict.missing]
    assert not wrong
    for each in wanted:
        if each.serve_to is not None:
            database, schema, table = each.serve_to.split(".")
            own = each.query.replace(f"{database}.", "")
            apart = f"(TABLE {schema}.{table} EXCEPT ALL ({own})) UNION ALL (({own}) EXCEPT ALL TABLE {schema}.{table})"
            with shops[database].server.superuser(shops[database].name) as superuser:
                assert superuser.execute(f"SELECT count(*) FROM ({apart}) x".encode()).fetchone() == (0,), each.name
    assert frontiers_shown(lake, "both") >= 2, "hardly a version to look at"
    late = {name: seconds for name, seconds in lateness(lake, wanted, calm).items() if seconds > run.late_seconds}
    assert not late


def frontiers_shown(lake: Lake, name: str) -> int:
    """How many versions a stream table had; in each, the two sums are one."""
    table = lake.ms._catalog.list()
    stream = next(each for each in table if str(each.name) == name)
    one, two = stream.definition.body.outputs
    path, seen = stream.public_stage.path, 0
    newest = DeltaTable(path).version()
    for version in range(newest + 1):
        at = DeltaTable(path, version=version)
        rows = QueryBuilder().register("t", at).execute(f'SELECT "{one}" AS one, "{two}" AS two FROM t').read_all()
        for one_sum, two_sum in zip(*(rows.column(c) for c in ("one", "two")), strict=True):
            assert one_sum.as_py() == two_sum.as_py(), f"version {version} shows two frontiers"
            seen += 1
    return seen


def lateness(lake: Lake, wanted: list[Definition], calm: list[tuple[datetime, datetime]]) -> dict[str, float]:
    """By how many seconds each table has missed a deadline, while nothing that it reads was amiss."""
    found: dict[str, float] = {}
    for each in wanted:
        for record in lake.ms.refresh_history(each.name, 1000):
            deadline, end = record.freshness_deadline, record.end_time
            is_counted = (record.initiated_by, record.status) == (InitiatedBy.SCHEDULER, RefreshStatus.COMPLETED)
            if not is_counted or deadline is None or end is None:
                continue
            if any(began + timedelta(seconds=TAKEOVER_SECONDS) <= deadline <= ended for began, ended in calm):
                found[each.name] = max(found.get(each.name, 0.0), (end - deadline).total_seconds())
    return found
