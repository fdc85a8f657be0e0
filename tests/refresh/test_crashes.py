"""A refresh is cut short by SIGKILL at every boundary between its steps; the next one makes everything right, once.

The query has two stages, so that a crash can fall between their commits. The process that dies shares this run's JVM,
since the boundaries are Python's; one that dies with a JVM of its own is among the long tests.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake, refused
from kits.lake_process import LakeProcess
from millstream import Action, Code, Status
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STAGED = (
    "SELECT n, COUNT(*) AS groups, MAX(s) AS m FROM (SELECT k, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY k) GROUP BY n"
)
PLAIN = "SELECT k, v FROM t WHERE v > 0"
CHANGES = (
    "INSERT INTO t VALUES ('a', 7), ('c', 8), ('c', 9)",
    "DELETE FROM t WHERE v = 2",
    "UPDATE t SET k = 'a' WHERE v = 4",
)
# where the process dies; how many stored tables it has committed to by then; whether the catalog knows
POINTS = {
    "before begin_refresh": ("begin_refresh", "before", 1),
    "after begin_refresh": ("begin_refresh", "after", 1),
    "after the first stage": ("commit", "after", 1),
    "before the last stage": ("commit", "before", 2),
    "after the last stage": ("commit", "after", 2),
    "before complete_refresh": ("complete_refresh", "before", 1),
    "after complete_refresh": ("complete_refresh", "after", 1),
}


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "k STRING, v INT", "'a', 1", "'a', 2", "'b', 3", "'b', 4", "NULL, 5")
    return lake


def assert_nothing_twice(lake: Lake) -> None:
    """Every refresh has committed at most once to each stored table, in growing order."""
    for log in lake.root.glob("stream_tables/*/*/_delta_log"):
        made: list[tuple[str, int]] = []
        for file in sorted(log.glob("*.json")):
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            made += [(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]
        assert max(Counter(made).values(), default=1) == 1
        assert made == sorted(made)


def crash(lake: Lake, spark: SparkSession, name: str, point: str, mode: str | None = None) -> None:
    with LakeProcess(lake.root, spark) as process:
        process.ask("die", *POINTS[point])
        process.tell("refresh", name, mode)
        assert process.killed()


@pytest.mark.parametrize("point", POINTS)
def test_a_delta_of_two_stages(t: Lake, spark: SparkSession, point: str) -> None:
    t.stream("staged", STAGED)
    before = t.rows("staged")
    t.sql(*CHANGES)
    crash(t, spark, "staged", point)
    is_done = point in {"after the last stage", "before complete_refresh", "after complete_refresh"}
    if not is_done:
        assert t.rows("staged") == before  # old contents, not half of the new
    result = t.refresh("staged")
    first, *rest = t.ms.refresh_history("staged")
    match point:
        case "before begin_refresh":
            assert result.action is Action.DIFFERENTIAL
            assert len(rest) == 1
        case "after begin_refresh":
            assert result.action is Action.DIFFERENTIAL
            assert rest[0].status is RefreshStatus.FAILED
        case "after the first stage" | "before the last stage":
            assert (rest[0].status, rest[0].action) == (RefreshStatus.COMPLETED, Action.DIFFERENTIAL)
            assert rest[0].reason.startswith("RESUMED: ")
        case "after the last stage" | "before complete_refresh":
            assert (rest[0].status, rest[0].action) == (RefreshStatus.COMPLETED, Action.DIFFERENTIAL)
            assert rest[0].reason.startswith("RECOVERED: ")
            assert (rest[0].rows_inserted, rest[0].rows_updated, rest[0].rows_deleted) != (0, 0, 0)
        case "after complete_refresh":
            assert rest[0].reason.startswith("CHANGED: ")
    if is_done or "stage" in point:
        assert result.action is Action.NO_DATA
    assert first.action is result.action
    (status,) = t.ms.status()
    assert status.status is Status.ACTIVE
    t.sql("DELETE FROM t WHERE k = 'c'")
    t.refresh("staged", Action.DIFFERENTIAL)
    assert_nothing_twice(t)


@pytest.mark.parametrize("point", ["after begin_refresh", "after the first stage", "after the last stage"])
def test_a_full_refresh_of_two_stages(t: Lake, spark: SparkSession, point: str) -> None:
    t.stream("staged", STAGED)
    before = t.rows("staged")
    t.sql(*CHANGES)
    crash(t, spark, "staged", point, "FULL")
    if point != "after the last stage":
        assert t.rows("staged") == before
    t.insert("t", "'late', 1")  # the source has moved on before somebody comes to mend it
    t.refresh("staged")
    assert_nothing_twice(t)


@pytest.mark.parametrize("point", ["after begin_refresh", "after the first stage", "before complete_refresh"])
def test_an_append(t: Lake, spark: SparkSession, point: str) -> None:
    t.stream("plain", PLAIN)
    t.insert("t", "'new', 10", "'new', 10")
    crash(t, spark, "plain", point)
    t.insert("t", "'new', 10")
    t.refresh("plain")
    assert t.rows("plain")[("new", 10)] == 3
    assert_nothing_twice(t)


@pytest.mark.parametrize("point", ["after begin_refresh", "after the first stage", "before complete_refresh"])
def test_the_middle_of_a_chain(t: Lake, spark: SparkSession, point: str) -> None:
    t.stream("below", "SELECT k, SUM(v) AS s FROM t GROUP BY k")
    t.stream("above", "SELECT MAX(s) AS m, COUNT(*) AS n FROM below")
    t.sql(*CHANGES)
    crash(t, spark, "above", point)  # the first step of each kind is that of `below`
    t.insert("t", "'late', 100")
    t.refresh("above")
    t.assert_exact("below")
    assert_nothing_twice(t)


@pytest.mark.parametrize("point", ["before begin_refresh", "after the first stage", "before complete_refresh"])
def test_the_first_load(t: Lake, spark: SparkSession, point: str) -> None:
    """A CREATE that is cut short leaves a stream table that its first refresh fills, or that can be dropped."""
    with LakeProcess(t.root, spark) as process:
        process.ask("die", *POINTS[point])
        process.tell("create", "staged", STAGED)
        assert process.killed()
    t.queries["staged"] = STAGED
    t.insert("t", "'late', 1")
    t.refresh("staged")
    t.ms.drop_stream_table("staged")
    t.stream("staged", STAGED)
    assert len(t.stored) == 1


def test_a_redefinition(t: Lake, spark: SparkSession) -> None:
    """The first refresh of a new definition is cut short: what that was loaded with stays readable."""
    t.stream("s", "SELECT k, v FROM t")
    t.sql("ALTER STREAM TABLE s AS SELECT k, SUM(v) AS v FROM t GROUP BY k")
    before = t.rows("s")
    t.insert("t", "'c', 1")
    crash(t, spark, "s", "after begin_refresh")
    with open_lake(t.root) as other:
        assert other.rows("s") == before
        other.queries["s"] = "SELECT k, SUM(v) AS v FROM t GROUP BY k"
        other.refresh("s", Action.DIFFERENTIAL)
        assert len(other.stored) == 1
    t.queries["s"] = "SELECT k, SUM(v) AS v FROM t GROUP BY k"
    t.refresh("s", Action.NO_DATA)


def test_a_restored_catalog_makes_delta_skip_nothing(t: Lake) -> None:
    """An older copy of the catalog's file: refresh ids and versions in it have been used since."""
    t.stream("staged", STAGED)
    t.stream("plain", PLAIN)
    t.insert("t", "'x', 1")
    t.refresh_all(expected=None)
    (file,) = t.root.glob("*.db")
    kept = t.root.parent / "kept.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(kept)) as copy:
        source.backup(copy)
    for number in range(3):
        t.insert("t", f"'y{number}', 1")
        t.refresh_all(expected=None)
    t.ms.close()
    for left in t.root.glob(f"{file.name}*"):
        left.unlink()
    shutil.copy(kept, file)
    with open_lake(t.root) as restored:
        restored.queries = t.queries
        restored.insert("t", "'z', 1")
        for name in ("staged", "plain"):
            assert "STORED_CHANGED" in restored.refresh(name, Action.REINITIALIZE).reason
        restored.insert("t", "'z', 2")
        restored.refresh("staged", Action.DIFFERENTIAL)
        restored.refresh("plain", Action.APPEND_ONLY)
        assert_nothing_twice(restored)


def test_a_stored_table_that_was_changed_behind_our_back(t: Lake) -> None:
    t.stream("plain", PLAIN, "DIFFERENTIAL STRICT")
    path = t.ms._catalog.list()[0].public_stage.path
    t.ms.spark.sql(f"OPTIMIZE delta.`{path}`")
    t.insert("t", "'x', 1")
    t.refresh("plain", Action.APPEND_ONLY)
    t.ms.spark.sql(f"DELETE FROM delta.`{path}` WHERE true")
    t.insert("t", "'x', 2")
    with refused(Code.FULL_REQUIRED, "STORED_CHANGED"):
        t.ms.refresh_stream_table("plain")
    t.refresh("plain", Action.FULL, mode="FULL")


@pytest.mark.long
@pytest.mark.parametrize("point", ["after begin_refresh", "after the first stage", "before complete_refresh"])
def test_python_and_jvm_die_together(t: Lake, point: str) -> None:
    t.stream("staged", STAGED)
    t.stream("plain", PLAIN)
    t.sql(*CHANGES)
    with LakeProcess(t.root) as process:
        process.ask("die", *POINTS[point])
        process.tell("refresh", "staged", "FULL")
        assert process.killed()
    t.refresh_all(expected=None)
    assert_nothing_twice(t)
