"""Data on which a delta, our plan of the query, or the query itself fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, refused
from kits.lake_process import LakeProcess
from millstream import Action, Code, Status
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# each fails on a row with v = 0 or s = 'x', wherever it computes with it
FAILING = {
    "project": "SELECT id, 100 / v AS r FROM t",
    "cast": "SELECT id, CAST(s AS INT) AS n FROM t",
    "filter": "SELECT id FROM t WHERE 100 / v > 1",
    "join": "SELECT t.id, u.name FROM t JOIN u ON u.k = CAST(100 / t.v AS INT)",
    "outer_join": "SELECT u.name, 100 / t.v AS r FROM u LEFT JOIN t ON u.k = t.id",
    "semi_join": "SELECT name FROM u WHERE k IN (SELECT CAST(100 / v AS INT) FROM t)",
    "aggregate": "SELECT s, SUM(100 / v) AS r, MIN(1 / v) AS m FROM t GROUP BY s",
    "key": "SELECT 100 / v AS r, COUNT(*) AS n FROM t GROUP BY 100 / v",
    "having": "SELECT id, COUNT(*) AS n FROM t GROUP BY id HAVING SUM(100 / v) > 0",
    "over_groups": "SELECT id, 100 / SUM(v) AS r FROM t GROUP BY id",
    "union": "SELECT 100 / v AS r FROM t UNION SELECT k FROM u",
    "hidden": "SELECT u.name, 100 / q.s AS r FROM (SELECT id, SUM(v) AS s FROM t GROUP BY id) q JOIN u ON q.id = u.k",
    "twice_hidden": """SELECT n, COUNT(*) AS c FROM (SELECT id, 100 / SUM(v) AS n FROM t GROUP BY id) GROUP BY n""",
}
SHORT = ["cast", "join", "aggregate", "hidden"]
HIDDEN = FAILING["hidden"]


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "id INT, v INT, s STRING", "1, 10, '1'", "2, 20, '2'", "2, 5, NULL")
    lake.table("u", "k INT, name STRING", "1, 'one'", "2, 'two'", "10, 'ten'", "7, 'seven'")
    return lake


def errors_of(lake: Lake) -> dict[str, tuple[Status, int]]:
    return {s.name: (s.status, s.consecutive_errors) for s in lake.ms.status()}


@pytest.mark.parametrize("names", [SHORT, pytest.param([n for n in FAILING if n not in SHORT], marks=pytest.mark.long)])
def test_where_the_query_fails_the_refresh_does_and_mended_data_mends_it(t: Lake, names: list[str]) -> None:
    for name in names:
        t.stream(name, FAILING[name])
    before = {name: t.rows(name) for name in names}
    t.insert("t", "7, 0, 'x'", "8, 50, '8'")
    for name in names:
        with refused(Code.REFRESH_FAILED, name, "CAST_INVALID_INPUT" if name == "cast" else "DIVIDE_BY_ZERO"):
            t.ms.refresh_stream_table(name)
        assert t.rows(name) == before[name]
        failed = t.last(name)
        assert failed.status is RefreshStatus.FAILED
        assert failed.error_message is not None
        assert name in failed.error_message
        assert t.ms.verify(name).ok  # at the frontier it still has
    assert set(errors_of(t).values()) == {(Status.ACTIVE, 1)}
    t.sql("UPDATE t SET v = 4, s = '4' WHERE id = 7")
    t.refresh_all(Action.DIFFERENTIAL)
    assert set(errors_of(t).values()) == {(Status.ACTIVE, 0)}
    t.sql("DELETE FROM t WHERE id = 7", "UPDATE t SET v = 6 WHERE id = 2 AND v = 5")
    t.refresh_all(Action.DIFFERENTIAL)  # what was stored on the way is right, too


def test_a_delta_that_fails_where_the_query_does_not(t: Lake) -> None:
    """Rows with arrays are not netted before a delta is computed, so that it sees a row that came and went."""
    t.table("w", "id INT, v INT, a ARRAY<INT>", "1, 10, array(1)")
    query = "SELECT id, 100 / v AS r, a FROM w"
    t.stream("s", query)
    t.stream("above", "SELECT SUM(r) AS r FROM s")
    t.stream("strict", query, "DIFFERENTIAL STRICT")
    t.insert("w", "2, 0, array(2)", "3, 5, NULL")
    t.sql("DELETE FROM w WHERE v = 0")
    result = t.refresh("s", Action.FULL)
    assert result.reason.startswith("DELTA_FAILED: [DIVIDE_BY_ZERO]")
    assert t.last("s").action is Action.FULL
    t.refresh("above")
    before = t.rows("strict")
    with refused(Code.FULL_REQUIRED, "strict", "DELTA_FAILED", "DIVIDE_BY_ZERO"):
        t.ms.refresh_stream_table("strict")
    assert t.rows("strict") == before
    assert errors_of(t)["strict"] == (Status.ACTIVE, 1)
    t.refresh("strict", Action.FULL, mode="FULL")
    t.insert("w", "4, 4, NULL")
    for name in ("s", "strict"):
        t.refresh(name, Action.APPEND_ONLY)


@pytest.mark.parametrize("mode", ["DIFFERENTIAL", "DIFFERENTIAL STRICT"])
def test_a_hidden_stage_is_taken_back_when_a_later_one_fails(t: Lake, mode: str) -> None:
    t.stream("s", HIDDEN, mode)
    before = t.rows("s")
    t.insert("t", "1, -10, NULL")  # the sum is zero: the hidden stage has no trouble with that
    for attempt in (1, 2):
        with refused(Code.REFRESH_FAILED if mode == "DIFFERENTIAL" else Code.FULL_REQUIRED, "DIVIDE_BY_ZERO"):
            t.ms.refresh_stream_table("s")
        assert t.rows("s") == before
        assert errors_of(t)["s"] == (Status.ACTIVE, attempt)
        t.insert("t", "2, 1, NULL")
    t.insert("t", "1, 3, NULL")
    t.refresh("s", Action.DIFFERENTIAL)
    t.sql("DELETE FROM t WHERE v = -10")
    t.refresh("s", Action.DIFFERENTIAL)


def test_a_crash_between_stages_on_data_that_fails(t: Lake, spark: SparkSession) -> None:
    """What was interrupted cannot be completed; with the data mended there is no need to."""
    t.stream("s", HIDDEN)
    t.insert("t", "1, -10, NULL")
    with LakeProcess(t.root, spark) as process:
        process.ask("die", "commit", "after", 1)
        process.tell("refresh", "s", None)
        assert process.killed()
    t.sql("DELETE FROM t WHERE v = -10")
    t.insert("t", "1, 5, NULL")
    t.refresh("s", Action.DIFFERENTIAL)
    assert errors_of(t)["s"] == (Status.ACTIVE, 0)
    t.sql("DELETE FROM t WHERE v = 20")
    t.refresh("s", Action.DIFFERENTIAL)


FILTERED = "SELECT id, r FROM (SELECT id, SUM(100 / v) AS r, COUNT(*) AS n FROM t GROUP BY id) WHERE id <> 7"


def test_the_query_has_the_last_word(t: Lake) -> None:
    """Spark filters before it divides; a stored group is computed before anybody asks for it."""
    t.stream("s", FILTERED)
    t.stream("above", "SELECT COUNT(*) AS n, SUM(id) AS i FROM s")
    t.stream("strict", FILTERED, "DIFFERENTIAL STRICT")
    t.insert("t", "7, 0, 'x'", "3, 2, NULL")
    result = t.refresh("s", Action.FULL)
    assert result.reason.startswith("DELTA_FAILED: [DIVIDE_BY_ZERO]")
    assert "; PLAN_FAILED: [DIVIDE_BY_ZERO]" in result.reason
    assert (result.rows_inserted, result.rows_deleted) == (3, 2)
    t.refresh("above")
    t.insert("t", "4, 2, NULL")
    result = t.refresh("s", Action.REINITIALIZE)  # nothing can be added to what the text has given
    assert result.reason.startswith("PLAN_FAILED: ")
    t.refresh("above")
    with refused(Code.FULL_REQUIRED, "strict", "DELTA_FAILED"):
        t.ms.refresh_stream_table("strict")
    assert "PLAN_FAILED" in t.refresh("strict", Action.FULL, mode="FULL").reason
    t.sql("DELETE FROM t WHERE v = 0")
    t.refresh("s", Action.REINITIALIZE)
    with refused(Code.FULL_REQUIRED, "PLAN_FAILED"):
        t.ms.refresh_stream_table("strict")
    assert "PLAN_FAILED" not in t.refresh("strict", Action.FULL, mode="FULL").reason
    t.insert("t", "1, 2, NULL")
    t.refresh_all(Action.DIFFERENTIAL)
    # also as the first load
    t.insert("t", "7, 0, 'x'")
    t.stream("first_", FILTERED, "AUTO")
    assert t.last("first_").reason.startswith("INITIAL: ")
    assert "PLAN_FAILED" in t.last("first_").reason


def test_nothing_is_created_on_data_that_fails(t: Lake) -> None:
    t.insert("t", "7, 0, 'x'")
    for name, query in FAILING.items():
        with refused(Code.REFRESH_FAILED, name, "nothing was loaded"):
            t.ms.create_stream_table(name, query)
    with refused(Code.REFRESH_FAILED, "DIVIDE_BY_ZERO"):
        t.sql(f"CREATE STREAM TABLE s AS {HIDDEN}")
    assert not t.stored
    assert not t.ms.status()
    assert {r["tableName"] for r in t.ms.spark.sql("SHOW TABLES").collect()} == {"t", "u"}
    # made without being loaded, it is loaded once that is possible
    t.stream("hidden", HIDDEN, initialize=False)
    with refused(Code.REFRESH_FAILED, "DIVIDE_BY_ZERO"):
        t.ms.refresh_stream_table("hidden")
    assert errors_of(t)["hidden"] == (Status.INITIALIZING, 1)
    t.sql("DELETE FROM t WHERE v = 0")
    t.refresh("hidden", Action.FULL)
    t.insert("t", "1, 5, NULL")
    t.refresh("hidden", Action.DIFFERENTIAL)
