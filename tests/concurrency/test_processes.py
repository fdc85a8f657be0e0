"""Two processes with a JVM each on one lake: they see each other's objects and take turns refreshing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake
from kits.lake_process import LakeProcess, Refused
from millstream import Action, Code, MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "lake"


@pytest.fixture(scope="module")
def other(root: Path) -> Iterator[LakeProcess]:
    """The second process; it starts while this one begins."""
    with LakeProcess(root) as process:
        yield process


@pytest.fixture
def here(other: LakeProcess, spark: SparkSession, root: Path) -> Iterator[Lake]:
    """This process, on an emptied lake; `other` must come first, so that both start at the same time."""
    with open_lake(root) as lake:
        other.ask("ready")
        for status in lake.ms.status():
            if any(s.name == status.name for s in lake.ms.status()):
                lake.ms.drop_stream_table(status.name, cascade=True)
        for row in lake.ms.spark.sql("SHOW TABLES").collect():
            kind = "VIEW" if lake.ms.spark.catalog.getTable(row["tableName"]).tableType == "VIEW" else "TABLE"
            lake.sql(f"DROP {kind} {row['tableName']}")
        lake.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
        yield lake


def refused(code: Code, other: LakeProcess, *call: str) -> None:
    with pytest.raises(Refused) as caught:
        other.ask(*call)
    assert caught.value.code == code


def test_each_sees_what_the_other_makes(here: Lake, other: LakeProcess) -> None:
    here.stream("sums", SUMS)
    assert sorted(other.ask("rows", "sums")) == [["a", 1], ["b", 2]]
    other.ask("run", "INSERT INTO t VALUES ('c', 3)", "CREATE VIEW large AS SELECT k, s FROM sums WHERE s > 1")
    assert other.ask("refresh", "sums") == "DIFFERENTIAL"
    here.assert_exact("sums")
    here.stream("n", "SELECT COUNT(*) AS n FROM large")
    assert here.rows("n") == {(2,): 1}
    other.ask("create", "above", "SELECT n + 1 AS n FROM n")
    assert other.ask("verify", "above")
    here.queries["above"] = "SELECT n + 1 AS n FROM n"
    here.insert("t", "'d', 4")
    here.refresh("above", Action.DIFFERENTIAL)
    assert other.ask("rows", "above") == [[4]]
    refused(Code.NAME_TAKEN, other, "create", "sums", SUMS)
    refused(Code.NAME_TAKEN, other, "run", "CREATE TABLE sums (a INT)")
    refused(Code.STREAM_TABLE_READ_ONLY, other, "run", "DELETE FROM sums")
    other.ask("drop", "sums")
    assert here.ms.status() == []
    with pytest.raises(MillstreamError) as caught:
        here.ms.table("sums")
    assert caught.value.code is Code.UNKNOWN_TABLE


def test_a_table_that_the_other_recreates(here: Lake, other: LakeProcess) -> None:
    here.stream("sums", SUMS)
    other.ask("refresh", "sums")
    here.sql("DROP TABLE t")
    refused(Code.SOURCE_MISSING, other, "refresh", "sums")
    here.table("t", "k STRING, v INT", "'new', 7")
    assert other.ask("refresh", "sums") == "REINITIALIZE"
    assert other.ask("rows", "sums") == [["new", 7]]
    other.ask("run", "INSERT INTO t VALUES ('new', 1)")
    here.refresh("sums", Action.DIFFERENTIAL)
    assert here.rows("t") == {("new", 7): 1, ("new", 1): 1}


def test_both_refresh_at_once(here: Lake, other: LakeProcess) -> None:
    here.stream("sums", SUMS)
    here.stream("above", "SELECT MAX(s) AS m FROM sums")
    for number in range(3):
        here.insert("t", f"'x', {number}")
        other.tell("refresh", "above")
        mine = here.ms.refresh_stream_table("above").action
        theirs = other.answer()
        assert {str(mine), theirs} <= {"DIFFERENTIAL", "NO_DATA"}
        assert "NO_DATA" in {str(mine), theirs}
        here.assert_exact("above")
        here.assert_exact("sums")
        assert other.ask("verify", "above")


def test_one_drops_what_the_other_refreshes(here: Lake, other: LakeProcess) -> None:
    here.stream("sums", SUMS)
    here.insert("t", "'x', 1")
    other.tell("refresh", "sums")
    here.ms.drop_stream_table("sums")
    assert other.outcome() in {"DIFFERENTIAL", Code.NOT_A_STREAM_TABLE}
    assert here.stored == []
    refused(Code.NOT_A_STREAM_TABLE, other, "refresh", "sums")
    here.stream("sums", SUMS)
    assert other.ask("refresh", "sums") == "NO_DATA"


def test_a_killed_refresh_gives_its_lock_back(here: Lake, spark: SparkSession) -> None:
    here.stream("sums", SUMS)
    here.insert("t", "'x', 1")
    with LakeProcess(here.root, spark) as dying:
        dying.ask("die", "commit", "after", 1)
        dying.tell("refresh", "sums")
        assert dying.killed()
    here.refresh("sums", Action.NO_DATA)
    assert here.ms.refresh_history("sums")[1].reason.startswith("RECOVERED: ")
