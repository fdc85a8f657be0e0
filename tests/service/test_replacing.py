"""A stream table gets another definition: with its contents loaded, or not at all."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from kits.lake import Lake, open_lake, refused
from kits.lake_process import LakeProcess
from millstream import Action, Code, Status
from millstream.notices import NoticeWarning
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LONG = pytest.mark.long
MODES = ["DIFFERENTIAL STRICT", *(pytest.param(mode, marks=LONG) for mode in ("AUTO", "DIFFERENTIAL", "FULL"))]
SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"
SAME_LAYOUT = "SELECT k, SUM(v) AS s FROM t WHERE v > 1 GROUP BY k"
OTHER_LAYOUT = "SELECT k, v AS s FROM t"
FAILING = "SELECT k, CAST(100 / (v - 2) AS INT) AS s FROM t"
STAGED = "SELECT n, MAX(s) AS s FROM (SELECT k, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY k) GROUP BY n"


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "k STRING, v INT", "'a', 1", "'a', 2", "'b', 3")
    return lake


def replace(lake: Lake, how: str, name: str, query: str, mode: str) -> None:
    """Replace a query by one of the three ways."""
    if how == "python":
        lake.ms.replace_stream_table(name, query)
    elif how == "alter":
        lake.sql(f"ALTER STREAM TABLE {name} AS {query}")
    else:
        lake.sql(f"CREATE OR REPLACE STREAM TABLE {name} REFRESH MODE {mode} AS {query}")


def state(lake: Lake, name: str) -> tuple[Any, ...]:
    """All that a replacement which fails must leave as it was."""
    table = next(x for x in lake.ms._catalog.list() if str(x.name) == name)
    history = [(r.refresh_id, r.status) for r in lake.ms.refresh_history(name)]
    contents = sorted(map(tuple, lake.read_back.table(name).collect()), key=repr)
    return table, history, contents, lake.stored


@pytest.mark.parametrize("mode", MODES)
def test_a_replacement_loads_the_new_contents(t: Lake, mode: str) -> None:
    incremental = {Action.DIFFERENTIAL, Action.APPEND_ONLY}
    t.stream("s", SUMS, mode)
    for how, query in (("python", SAME_LAYOUT), ("alter", OTHER_LAYOUT), ("sql", STAGED)):
        t.insert("t", "'d', 8")
        replace(t, how, "s", query, mode)
        t.queries["s"] = query
        assert not t.difference("s")
        t.assert_exact("s")
        (status,) = t.ms.status()
        assert (status.status, status.refresh_mode, status.consecutive_errors) == (Status.ACTIVE, mode, 0)
        assert (t.last("s").status, t.last("s").action) == (RefreshStatus.COMPLETED, Action.REINITIALIZE)
        assert t.last("s").reason.startswith("QUERY_ALTERED")
        assert len(t.stored) == 1
        t.insert("t", "'e', 7")
        assert t.refresh("s").action in ({Action.FULL} if mode == "FULL" else incremental)


@pytest.mark.parametrize("mode", MODES)
def test_a_query_that_fails_on_the_data_changes_nothing(t: Lake, mode: str) -> None:
    t.stream("s", SUMS, mode)
    before = state(t, "s")
    for how in ("python", "alter", "sql"):
        with refused(Code.REFRESH_FAILED, "DIVIDE_BY_ZERO"):
            replace(t, how, "s", FAILING, mode)
        assert state(t, "s") == before
    t.insert("t", "'c', 9")
    t.refresh("s")
    assert len(t.stored) == 1


def test_a_replacement_that_is_refused_changes_nothing(t: Lake) -> None:
    t.stream("s", SUMS, "DIFFERENTIAL STRICT")
    t.stream("above", "SELECT MAX(s) AS m FROM s")
    t.sql("CREATE TABLE p (k STRING, s BIGINT) USING parquet", "CREATE VIEW w AS SELECT m FROM above")
    for query, code in (
        ("SELECT k FROM t", Code.INCOMPATIBLE_CHANGE),
        ("SELECT 'x' AS k, m AS s FROM w", Code.CYCLE),
        ("SELECT k, s FROM nowhere", Code.UNKNOWN_TABLE),
        ("SELECT k, s FROM p", Code.SOURCE_NO_CHANGE_FEED),
    ):
        before = state(t, "s")
        for how in ("python", "alter", "sql"):
            with refused(code):
                replace(t, how, "s", query, "DIFFERENTIAL STRICT")
            assert state(t, "s") == before
    before = state(t, "s")
    with refused(Code.SCHEDULE_INVALID):
        t.ms.replace_stream_table("s", SAME_LAYOUT, schedule="soon")
    with refused(Code.MODE_INVALID):
        t.ms.alter_stream_table("s", query=SAME_LAYOUT, refresh_mode="SOMETIMES")
    with refused(Code.STATUS_INVALID):
        t.ms.alter_stream_table("s", query=SAME_LAYOUT, status="ERROR")
    assert state(t, "s") == before


@pytest.mark.parametrize("mode", MODES)
def test_an_identical_definition_does_nothing(t: Lake, mode: str) -> None:
    t.ms.create_stream_table("s", SUMS, "1m", mode)
    t.queries["s"] = SUMS
    t.insert("t", "'c', 9")  # is for the next refresh
    before = state(t, "s")
    t.ms.replace_stream_table("s", SUMS)
    t.ms.replace_stream_table("s", SUMS, schedule="1m", refresh_mode=mode)
    t.sql(f"ALTER STREAM TABLE s AS {SUMS}", f"CREATE OR REPLACE STREAM TABLE s REFRESH MODE {mode} AS {SUMS}")
    assert state(t, "s") == before
    t.sql(f"CREATE OR REPLACE STREAM TABLE s SCHEDULE '5m' REFRESH MODE {mode} AS {SUMS}")
    (status,) = t.ms.status()
    assert status.schedule == "5m"
    table, *others = state(t, "s")
    assert others == list(before[1:])
    assert (table.definition, table.definition_version) == (before[0].definition, before[0].definition_version)
    t.refresh("s")


def test_the_same_text_over_something_else_is_loaded(t: Lake) -> None:
    t.sql("CREATE VIEW w AS SELECT k, v FROM t")
    t.stream("s", "SELECT k, v FROM w", "DIFFERENTIAL STRICT")
    t.sql("CREATE OR REPLACE VIEW w AS SELECT k, v + 1 AS v FROM t")
    t.ms.replace_stream_table("s", "SELECT k, v FROM w")
    assert not t.difference("s")
    t.insert("t", "'c', 9")
    t.refresh("s", Action.APPEND_ONLY)


def test_a_mode_with_another_layout_is_loaded_at_once(t: Lake) -> None:
    t.stream("s", SUMS, "FULL")
    t.insert("t", "'c', 9")
    t.sql("ALTER STREAM TABLE s SET REFRESH MODE DIFFERENTIAL STRICT")
    t.assert_exact("s")
    t.insert("t", "'d', 9")
    t.refresh("s", Action.DIFFERENTIAL)
    t.sql("ALTER STREAM TABLE s SET REFRESH MODE FULL")
    t.insert("t", "'d', 9")
    t.refresh("s", Action.FULL)
    assert len(t.stored) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_replacement_with_no_data(t: Lake, mode: str) -> None:
    t.stream("s", SUMS, mode)
    t.sql(f"CREATE OR REPLACE STREAM TABLE s REFRESH MODE {mode} WITH NO DATA AS {OTHER_LAYOUT}")
    t.queries["s"] = OTHER_LAYOUT
    (status,) = t.ms.status()
    assert (status.status, status.is_populated, status.data_timestamp) == (Status.INITIALIZING, False, None)
    assert not t.rows("s")
    assert len(t.stored) == 1
    before = state(t, "s")
    t.ms.replace_stream_table("s", OTHER_LAYOUT, initialize=False)
    assert state(t, "s") == before
    assert t.refresh("s", Action.FULL).reason.startswith("INITIAL")
    t.ms.replace_stream_table("s", SUMS, initialize=False)
    t.ms.replace_stream_table("s", SUMS)  # the same, with data
    t.queries["s"] = SUMS
    assert not t.difference("s")
    t.insert("t", "'c', 9")
    t.refresh("s")


def test_a_table_never_loaded_is_altered_and_still_not_loaded(t: Lake) -> None:
    t.stream("s", SUMS, "DIFFERENTIAL STRICT", initialize=False)
    t.sql(f"ALTER STREAM TABLE s AS {OTHER_LAYOUT}")
    t.queries["s"] = OTHER_LAYOUT
    assert t.ms.status()[0].status is Status.INITIALIZING
    assert t.ms.refresh_history("s") == []
    t.refresh("s", Action.FULL)


@pytest.mark.parametrize("mode", ["AUTO", "DIFFERENTIAL STRICT", pytest.param("FULL", marks=LONG)])
def test_readers_start_over_and_strict_ones_when_they_are_told_to(t: Lake, mode: str) -> None:
    t.stream("s", SUMS)
    t.stream("above", "SELECT MAX(s) AS m, COUNT(*) AS n FROM s", mode)
    t.stream("top", "SELECT m + n AS x FROM above", mode)
    is_strict = mode == "DIFFERENTIAL STRICT"
    with pytest.warns(NoticeWarning, match="REFRESH STREAM TABLE (above|top) FULL") if is_strict else nullcontext():
        t.ms.replace_stream_table("s", SAME_LAYOUT)
    t.queries["s"] = SAME_LAYOUT
    if mode == "DIFFERENTIAL STRICT":
        before = {name: state(t, name)[0].definition for name in ("above", "top")}
        for name, at in (("top", "above"), ("above", "above"), ("top", "above")):
            with refused(Code.FULL_REQUIRED, f"REFRESH STREAM TABLE {at} FULL"):
                t.ms.refresh_stream_table(name)
        assert {name: state(t, name)[0].definition for name in before} == before
        t.sql("REFRESH STREAM TABLE above FULL")
        t.assert_exact("above")
        with refused(Code.FULL_REQUIRED, "REFRESH STREAM TABLE top FULL"):
            t.ms.refresh_stream_table("top")
        t.refresh("top", mode="FULL")
    else:
        result = t.refresh("top", Action.REINITIALIZE)
        assert result.reason.startswith("QUERY_ALTERED")
    t.assert_exact("above")
    t.insert("t", "'z', 50")
    t.refresh("top", Action.FULL if mode == "FULL" else None)
    assert t.last("top").action not in ({Action.REINITIALIZE} if mode == "FULL" else {Action.REINITIALIZE, Action.FULL})


def test_what_others_replace_under_a_strict_table_leaves_it_whole(t: Lake) -> None:
    t.sql("CREATE VIEW w AS SELECT k, v FROM t")
    t.stream("s", "SELECT k, SUM(v) AS s FROM w GROUP BY k", "DIFFERENTIAL STRICT")
    table, _, contents, stored = state(t, "s")
    for text in ("SELECT k, v + 1 AS v FROM t", "SELECT k, 10 / (v - 2) AS v FROM t"):
        t.sql(f"CREATE OR REPLACE VIEW w AS {text}")
        with refused(Code.FULL_REQUIRED, "w was replaced", "REFRESH STREAM TABLE s FULL"):
            t.ms.refresh_stream_table("s")
        now = state(t, "s")
        assert (now[0].definition, now[0].stages, now[0].status) == (table.definition, table.stages, Status.ACTIVE)
        assert now[2:] == (contents, stored)
    with refused(Code.REFRESH_FAILED):
        t.ms.refresh_stream_table("s", mode="FULL")
    assert (state(t, "s")[0].definition, state(t, "s")[2:]) == (table.definition, (contents, stored))
    t.sql("CREATE OR REPLACE VIEW w AS SELECT k, v FROM t")  # as it was: nothing has happened
    t.insert("t", "'c', 9")
    t.refresh("s", Action.DIFFERENTIAL)
    t.sql("CREATE OR REPLACE VIEW w AS SELECT k, v * 2 AS v FROM t")
    t.refresh("s", Action.REINITIALIZE, mode="FULL")
    t.insert("t", "'d', 9")
    t.refresh("s", Action.DIFFERENTIAL)


@pytest.mark.parametrize("mode", ["AUTO", "FULL"])
def test_what_fails_after_a_view_was_replaced_leaves_the_old_definition(t: Lake, mode: str) -> None:
    t.table("u", "k STRING, v INT", "'u', 0")
    t.sql("CREATE VIEW w AS SELECT k, v FROM t")
    t.stream("s", "SELECT k, v FROM w", mode)
    table, _, contents, stored = state(t, "s")
    for text in ("SELECT k, CAST(10 / (v - 2) AS INT) AS v FROM t", "SELECT k, CAST(10 / v AS INT) AS v FROM u"):
        t.sql(f"CREATE OR REPLACE VIEW w AS {text}")
        with refused(Code.REFRESH_FAILED):
            t.ms.refresh_stream_table("s")
        now = state(t, "s")
        assert (now[0].definition, now[0].stages, now[0].needs_reinit) == (table.definition, table.stages, False)
        assert now[2:] == (contents, stored)
        assert (t.last("s").status, now[0].consecutive_errors) == (RefreshStatus.FAILED, 1)
        t.sql("CREATE OR REPLACE VIEW w AS SELECT k, v FROM t")
        t.refresh("s", Action.NO_DATA)
    t.sql("CREATE OR REPLACE VIEW w AS SELECT k, v FROM u")
    t.refresh("s", Action.REINITIALIZE)
    t.insert("u", "'u', 1")
    t.refresh("s")


def test_a_replacement_after_a_crash_needs_no_refresh_first(t: Lake, spark: SparkSession) -> None:
    t.stream("s", STAGED)
    t.insert("t", "'c', 9")
    with LakeProcess(t.root, spark) as process:
        process.ask("die", "commit", "after", 1)
        process.tell("refresh", "s")
        assert process.killed()
    before = t.rows("s")
    with refused(Code.REFRESH_FAILED):
        t.ms.replace_stream_table("s", FAILING)
    assert t.rows("s") == before
    t.ms.replace_stream_table("s", OTHER_LAYOUT)
    t.queries["s"] = OTHER_LAYOUT
    t.insert("t", "'d', 9")
    t.refresh("s", Action.APPEND_ONLY)
    assert RefreshStatus.RUNNING not in {r.status for r in t.ms.refresh_history("s")}


def test_a_suspended_table_is_replaced_and_stays_suspended(t: Lake) -> None:
    t.stream("s", SUMS)
    t.ms.alter_stream_table("s", status="SUSPENDED")
    t.ms.replace_stream_table("s", OTHER_LAYOUT)
    t.queries["s"] = OTHER_LAYOUT
    t.assert_exact("s")
    assert t.ms.status()[0].status is Status.SUSPENDED
    t.ms.alter_stream_table("s", query=SUMS, status="ACTIVE", schedule="7m", refresh_mode="FULL")
    t.queries["s"] = SUMS
    t.assert_exact("s")
    (status,) = t.ms.status()
    assert (status.status, status.schedule, status.refresh_mode) == (Status.ACTIVE, "7m", "FULL")


KILLS = {
    "before the stages": ("millstream.lake.stage_storage:StageStorage.create", "before", 1),
    "after the stages": ("millstream.lake.stage_storage:StageStorage.create", "after", 1),
    "after the first commit": ("commit", "after", 1),
    "after the last commit": ("commit", "after", 2),
    "before the switch": ("replace_stream_table", "before", 1),
    "after the switch": ("replace_stream_table", "after", 1),
    "after the sweep": ("millstream.lake.stage_storage:StageStorage.sweep", "after", 2),
}


@pytest.mark.parametrize(
    "point", [p if "switch" in p or "last commit" in p else pytest.param(p, marks=LONG) for p in KILLS]
)
def test_killed_at_each_step(t: Lake, spark: SparkSession, point: str) -> None:
    """The old definition with the old contents, or the new one with the new."""
    t.stream("s", SUMS, "DIFFERENTIAL STRICT")
    t.stream("above", "SELECT COUNT(*) AS n FROM s")
    old = (state(t, "s")[0].definition.original_query, t.rows("s"))
    query = STAGED.replace("SELECT n,", "SELECT CAST(n AS STRING) AS k,")
    new = (query, {("2", 3): 1, ("1", 3): 1})
    with LakeProcess(t.root, spark) as process:
        process.ask("die", *KILLS[point])
        process.tell("run", f"ALTER STREAM TABLE s AS {query}")
        assert process.killed()
    with open_lake(t.root) as other:
        is_new = point.startswith(("after the switch", "after the sweep"))
        found = (state(other, "s")[0].definition.original_query, other.rows("s"))
        assert found == (new if is_new else old)
        other.queries = {"s": query if is_new else SUMS, "above": t.queries["above"]}
        other.insert("t", "'late', 1")
        other.refresh("s", Action.DIFFERENTIAL)
        other.refresh("above")
        other.ms.replace_stream_table("s", query)
        other.queries["s"] = query
        other.refresh("s", Action.NO_DATA)
        other.refresh("above")
        assert len(other.stored) == 2
