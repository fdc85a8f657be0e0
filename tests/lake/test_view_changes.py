"""Views and SQL functions that change under stream tables: replaced, made to read other tables, dropped, made again."""

from __future__ import annotations

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code, Status

pytestmark = pytest.mark.spark


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "a INT, b INT", "1, 10", "2, 20", "3, NULL")
    lake.table("u", "a INT, b INT", "7, 70")
    return lake


def status_of(lake: Lake, name: str) -> tuple[Status, str]:
    """The status and its reason, as DESCRIBE shows them."""
    (text,) = (r["data_type"] for r in lake.ms.sql(f"DESCRIBE STREAM TABLE {name}").collect() if r[0] == "# Status")
    return {s.name: s.status for s in lake.ms.status()}[name], text


def last_load(t: Lake, name: str) -> Action:
    """What the last refresh did that did something: a chain of which a definition was followed is refreshed again."""
    return next(r.action for r in t.ms.refresh_history(name) if r.action is not Action.NO_DATA)


def test_views_ten_deep(t: Lake) -> None:
    t.sql("CREATE VIEW v1 AS SELECT a, b FROM t")
    t.sql(*(f"CREATE VIEW v{i} AS SELECT a, b + 1 AS b FROM v{i - 1}" for i in range(2, 12)))
    t.stream("deep", "SELECT a, SUM(b) AS s FROM v10 GROUP BY a")
    with refused(Code.UNSUPPORTED_SQL, "10 deep", "FULL"):
        t.ms.create_stream_table("deeper", "SELECT a, b FROM v11", refresh_mode="DIFFERENTIAL")
    with pytest.warns(match="10 deep"):
        t.stream("deeper", "SELECT a, b FROM v11", "AUTO")
    t.insert("t", "1, 5")
    t.refresh("deep", Action.DIFFERENTIAL)
    t.refresh("deeper", Action.FULL)
    t.sql("CREATE OR REPLACE VIEW v1 AS SELECT a, b * 2 AS b FROM t")
    for name in ("deep", "deeper"):
        assert "SOURCE_CHANGED: v1 was replaced" in t.refresh(name, Action.REINITIALIZE).reason


def test_a_view_that_comes_to_read_other_tables(t: Lake) -> None:
    t.sql("CREATE VIEW v AS SELECT a, b FROM t")
    t.stream("sums", "SELECT a, SUM(b) AS b FROM u GROUP BY a")
    t.stream("s", "SELECT a, b FROM v WHERE a > 1")
    t.stream("above", "SELECT COUNT(*) AS n FROM s")
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a, b FROM u")
    result = t.refresh("s", Action.REINITIALIZE)
    assert "v was replaced" in result.reason
    assert set(result.frontier) == {"u"}
    t.insert("t", "4, 40")
    t.refresh("s", Action.NO_DATA)
    t.insert("u", "8, 80")
    t.refresh("s", Action.APPEND_ONLY)
    t.refresh("above")
    # one of both, and a stream table among them, which is then brought up to date first; from the end of the chain
    t.insert("u", "8, 1")
    t.sql("ALTER VIEW v AS SELECT t.a, CAST(sums.b AS INT) AS b FROM t JOIN sums ON t.a + 5 = sums.a")
    assert set(t.refresh("above").frontier) == {"t", "u"}
    assert last_load(t, "s") is Action.REINITIALIZE
    t.assert_exact("s")
    t.assert_exact("sums")
    t.insert("t", "5, 25")
    t.insert("u", "9, 81")
    t.refresh("above")
    t.assert_exact("s")
    with open_lake(t.root) as other:
        other.queries = t.queries
        other.sql("CREATE OR REPLACE VIEW v AS SELECT a, b FROM t")
        t.refresh("s", Action.REINITIALIZE)
        other.refresh("above")


def test_a_view_that_comes_to_read_its_reader(t: Lake) -> None:
    t.sql("CREATE VIEW v AS SELECT a FROM t")
    t.stream("s", "SELECT a FROM v")
    t.stream("above", "SELECT a FROM s WHERE a > 1")
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a FROM above")
    for name in ("s", "above"):
        with refused(Code.SOURCE_CHANGED, "s would read itself"):
            t.ms.refresh_stream_table(name)
    assert status_of(t, "s")[0] is Status.ERROR
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a FROM t WHERE a > 0")
    t.refresh("above")
    assert last_load(t, "s") is Action.REINITIALIZE


def test_a_view_that_is_dropped_and_made_again(t: Lake) -> None:
    t.sql("CREATE VIEW inner_v AS SELECT a, b FROM t", "CREATE VIEW v AS SELECT a, b FROM inner_v")
    for mode in ("DIFFERENTIAL", "FULL"):
        t.stream(f"s_{mode[:4].lower()}", "SELECT a, COUNT(*) AS n FROM v GROUP BY a", mode)
    for dropped, again in (
        ("inner_v", "SELECT a, b FROM t"),
        ("v", "SELECT a, b FROM inner_v"),
        ("inner_v", "SELECT b AS a, b FROM t"),
    ):
        t.sql(f"DROP VIEW {dropped}")
        t.insert("t", "1, 1")
        for name in list(t.queries):
            before = t.rows(name)
            with refused(Code.SOURCE_CHANGED, name, dropped):
                t.ms.refresh_stream_table(name)
            status, reason = status_of(t, name)
            assert status is Status.ERROR
            assert dropped in reason
            assert t.rows(name) == before
            assert t.ms.verify(name).ok
        t.sql(f"CREATE VIEW {dropped} AS {again}")
        for name in list(t.queries):
            t.refresh(name, Action.REINITIALIZE if again.startswith("SELECT b") else None)
            assert status_of(t, name)[0] is Status.ACTIVE


def test_functions_that_change(t: Lake) -> None:
    t.sql(
        "CREATE FUNCTION inc(x INT) RETURNS INT RETURN x + 1",
        "CREATE VIEW v AS SELECT a, inc(b) AS b FROM t",
    )
    t.stream("by_view", "SELECT a, SUM(b) AS s FROM v GROUP BY a")
    t.stream("full_", "SELECT inc(a) AS a FROM t", "FULL")
    names = ("by_view", "full_")
    # the same function made again is no change
    t.sql("CREATE OR REPLACE FUNCTION inc(x INT) RETURNS INT RETURN x + 1")
    t.refresh_all(Action.NO_DATA)
    t.sql("CREATE OR REPLACE FUNCTION inc(x INT) RETURNS BIGINT RETURN x + 1000L")
    for name in names:
        assert "SOURCE_CHANGED: inc was replaced" in t.refresh(name, Action.REINITIALIZE).reason
    assert t.ms.table("full_").dtypes == [("a", "bigint")]
    t.insert("t", "1, 1")
    t.refresh("by_view", Action.DIFFERENTIAL)
    # gone, in another shape, and back
    before = {name: t.rows(name) for name in names}
    for statement in ("DROP FUNCTION inc", "CREATE FUNCTION inc(x INT, y INT) RETURNS INT RETURN x + y"):
        t.sql(statement)
        for name in names:
            with refused(Code.SOURCE_CHANGED, name, "inc"):
                t.ms.refresh_stream_table(name)
            status, reason = status_of(t, name)
            assert status is Status.ERROR
            assert "inc" in reason
            assert t.rows(name) == before[name]
        with open_lake(t.root) as other, refused(Code.SOURCE_CHANGED, "full_", "inc"):
            other.ms.refresh_stream_table("full_")  # by a process that has never seen it work
    t.sql("CREATE OR REPLACE FUNCTION inc(x INT) RETURNS BIGINT RETURN x + 1000L")
    t.insert("t", "2, 2")
    t.refresh("by_view", Action.DIFFERENTIAL)
    t.refresh("full_", Action.FULL)
    assert {s.status for s in t.ms.status()} == {Status.ACTIVE}
