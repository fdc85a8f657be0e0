"""A refresh of a cycle is cut short by SIGKILL between its steps: the next one brings all members to one fixpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake
from kits.lake_process import LakeProcess
from millstream import Action
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CHANGES = ("DELETE FROM pairs WHERE x = 1", "INSERT INTO pairs VALUES (5, 6)")
AFTER = {"there": {(3, 4), (4, 3), (5, 6), (6, 5)}, "back": {(3, 4), (4, 3), (5, 6), (6, 5)}}
# where the process dies, and how the interrupted refresh ends
POINTS = {
    "after the intents": ("begin_refreshes", "after", 1, "FAILED"),
    "after the first member": ("commit", "after", 1, "RESUMED"),
    "before the second member": ("commit", "before", 2, "RESUMED"),
    "after the second member": ("commit", "after", 2, "RECOVERED"),
    "before the catalog": ("complete_refreshes", "before", 1, "RECOVERED"),
    "after the catalog": ("complete_refreshes", "after", 1, "FROM_EMPTY"),
}
LONG = [pytest.param(p, marks=pytest.mark.long) for p in POINTS if p not in ("after the first member",)]


@pytest.fixture
def pairs(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", allow_circular=True) as lake:
        lake.table("pairs", "x INT, y INT", "1, 2", "3, 4")
        lake.stream("there", "SELECT DISTINCT x, y FROM pairs")
        lake.stream("back", "SELECT y AS x, x AS y FROM there")
        lake.ms.alter_stream_table("there", query="SELECT x, y FROM pairs UNION SELECT x, y FROM back")
        lake.ms.alter_stream_table("back", query="SELECT DISTINCT y AS x, x AS y FROM there")
        yield lake


@pytest.mark.parametrize("point", ["after the first member", *LONG])
def test_all_members_or_none(pairs: Lake, spark: SparkSession, point: str) -> None:
    *where, ending = POINTS[point]
    before = {t.name: t.public_stage.version or 0 for t in pairs.ms._catalog.list()}
    frontiers = {str(t.name): t.frontier for t in pairs.ms._catalog.list()}
    pairs.sql(*CHANGES)
    with LakeProcess(pairs.root, spark) as process:
        process.ask("die", *where)
        process.tell("refresh", "there", None)
        assert process.killed()
    if point != "after the catalog":
        assert {str(t.name): t.frontier for t in pairs.ms._catalog.list()} == frontiers  # of no member
    result = pairs.ms.refresh_stream_table("back")
    assert result.action is (Action.DIFFERENTIAL if ending == "FAILED" else Action.NO_DATA), result.reason
    for name, rows in AFTER.items():
        assert dict(pairs.rows(name)) == dict.fromkeys(rows, 1)
        assert pairs.ms.verify(name).ok
        interrupted = pairs.ms.refresh_history(name, 2)[1]
        if ending == "FAILED":
            assert interrupted.status is RefreshStatus.FAILED
        else:
            assert interrupted.status is RefreshStatus.COMPLETED
            assert (interrupted.reason or "").startswith(ending)
    # each member was committed exactly once
    assert {t.name: t.public_stage.version for t in pairs.ms._catalog.list()} == {n: v + 1 for n, v in before.items()}
    assert {t.open_refresh_id for t in pairs.ms._catalog.list()} == {None}
