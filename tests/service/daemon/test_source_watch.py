"""The daemon notices what happens to sources although none of their readers is due for long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.captured_lake import CapturedLake, open_captured
from kits.daemon import running, until
from kits.lake import FEED
from millstream import Action, Code, MillstreamError
from millstream.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kits.shops import Shop

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
YEARLY = "0 0 1 1 *"


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop, scheduler_interval_ms=100, source_watch_seconds=1) as opened:
        opened.run(
            "CREATE TABLE t (id int PRIMARY KEY, v int, w int)",
            "INSERT INTO t VALUES (1, 10, 1), (2, 20, 2)",
            "CREATE TABLE u (id int PRIMARY KEY, v int)",
            "INSERT INTO u VALUES (1, 1)",
            "CREATE VIEW large AS SELECT id, v FROM u WHERE v > 0",
            "GRANT SELECT ON large TO millstream",
        )
        yield opened


def needed(lake: CapturedLake) -> list[tuple[str | None, str]]:
    """The stream tables that have to be reinitialised, and why, in the order of the events."""
    found = lake.ms.events(names=["reinitialize_needed"])
    return [(e.stream_table, str(e.fields["reason"])) for e in found]


def test_what_happens_to_sources_while_nothing_is_due(lake: CapturedLake) -> None:
    ms = lake.ms
    ms.sql(f"CREATE TABLE d (id INT, v INT) USING delta {FEED}")
    ms.create_stream_table("of_t", "SELECT id, v FROM shop.public.t", schedule=YEARLY)
    ms.create_stream_table("of_view", "SELECT id, v FROM shop.public.large", schedule=YEARLY)
    ms.create_stream_table("of_d", "SELECT id, v FROM d", schedule=YEARLY)
    refreshes = len(ms.refresh_history(limit=100))
    with running(ms) as daemon:
        until(lambda: daemon.activities)
        lake.run("ALTER TABLE t DROP w", "ALTER TABLE t ALTER v TYPE bigint")
        until(lambda: len(needed(lake)) == 1)
        lake.run("DROP VIEW large")
        until(lambda: len(needed(lake)) == 2)
        ms.sql("DROP TABLE d")
        ms.sql(f"CREATE TABLE d (id INT, v INT) USING delta {FEED}")
        until(lambda: len(needed(lake)) == 3)
        seen = len(daemon.activities)
        until(lambda: len(daemon.activities) > seen + 25)  # several more looks
        assert needed(lake) == [
            ("of_t", f"{Reason.SOURCE_CHANGED}: shop.public.t has changed its column v from integer to bigint"),
            ("of_view", f"{Reason.SOURCE_CHANGED}: shop.public.large was dropped"),
            ("of_d", f"{Reason.SOURCE_CHANGED}: d was replaced by another table"),
        ]
        assert len(ms.refresh_history(limit=100)) == refreshes  # nothing was due
        # the readers: a column of another type and a replaced table are followed, a dropped view is not
        for name in ("of_t", "of_d"):
            assert ms.refresh_stream_table(name).action is Action.REINITIALIZE
            assert ms.verify(name).ok
        with pytest.raises(MillstreamError) as caught:
            ms.refresh_stream_table("of_view")
        assert caught.value.code is Code.SOURCE_CHANGED
        lake.run("INSERT INTO u VALUES (2, 2)")
        lake.run("CREATE VIEW large AS SELECT id, v FROM u WHERE v > 0", "GRANT SELECT ON large TO millstream")
        assert ms.refresh_stream_table("of_view").action is not Action.NO_DATA
        assert ms.verify("of_view").ok
        assert sorted(map(tuple, ms.table("of_view").collect())) == [(1, 1), (2, 2)]
