"""The lake's own objects: views and functions under stream tables, and what a second process, or a later one, sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code, Status
from millstream.catalog.models import ObjectKind
from millstream.naming import TableName

pytestmark = pytest.mark.spark


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table("t", "a INT, b INT", "1, 10", "2, 20", "3, NULL")
    return lake


def test_views_are_read_through(t: Lake) -> None:
    t.sql(
        "CREATE VIEW doubled AS SELECT a, b * 2 AS d FROM t",
        "CREATE VIEW named (x, y) AS SELECT a, d FROM doubled WHERE d IS NOT NULL",
        "CREATE VIEW everything AS SELECT * FROM t",
    )
    t.stream("over_view", "SELECT x, SUM(y) AS s FROM named GROUP BY x")
    t.stream("aliased", "SELECT n.y, e.b FROM named n LEFT JOIN everything AS e ON n.x = e.a")
    t.stream("star", "SELECT * FROM everything")
    t.insert("t", "1, 5")
    t.sql("DELETE FROM t WHERE a = 2", "ALTER TABLE t ADD COLUMN c INT")
    t.refresh_all(expected=None)
    assert t.last("over_view").action is Action.DIFFERENTIAL
    assert t.ms.table("star").columns == ["a", "b"]


def test_a_replaced_view_starts_over_and_a_dropped_one_is_an_error(t: Lake) -> None:
    t.sql("CREATE VIEW v AS SELECT a, b FROM t WHERE a > 1", "CREATE VIEW w AS SELECT * FROM v")
    t.stream("s", "SELECT a, b FROM w")
    t.stream("above", "SELECT COUNT(*) AS n FROM s")
    t.refresh("s", Action.NO_DATA)
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a, b + 1 AS b FROM t")
    result = t.refresh("s", Action.REINITIALIZE)
    assert "v was replaced" in result.reason
    t.refresh("above")
    t.insert("t", "9, 9")
    t.refresh("s", Action.APPEND_ONLY)
    # a type that changes goes up the chain
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a, CAST(b AS BIGINT) AS b FROM t")
    t.refresh("above", Action.REINITIALIZE)
    t.assert_exact("s")
    assert t.ms.table("s").dtypes == [("a", "int"), ("b", "bigint")]
    assert len(t.stored) == 2
    # other columns do not fit
    before = t.rows("s")
    t.sql("CREATE OR REPLACE VIEW v AS SELECT a FROM t")
    with refused(Code.SOURCE_CHANGED, "s"):
        t.ms.refresh_stream_table("s")
    t.sql("DROP VIEW v")
    with refused(Code.SOURCE_CHANGED, "s"):
        t.ms.refresh_stream_table("above")
    assert t.rows("s") == before
    assert {s.name: s.status for s in t.ms.status()}["s"] is Status.ERROR
    t.ms.explain("s")
    t.sql("CREATE VIEW v AS SELECT a, b FROM t")
    t.refresh("s", Action.REINITIALIZE)
    t.refresh("above")


def test_a_view_of_another_process_starts_over_here(t: Lake) -> None:
    t.sql("CREATE VIEW v AS SELECT a FROM t")
    t.stream("s", "SELECT a FROM v")
    with open_lake(t.root) as other:
        other.queries = t.queries
        other.insert("t", "4, 4")
        other.refresh("s", Action.APPEND_ONLY)
        t.sql("CREATE OR REPLACE VIEW v AS SELECT a * 10 AS a FROM t")
        other.refresh("s", Action.REINITIALIZE)
        t.insert("t", "5, 5")
        t.refresh("s", Action.APPEND_ONLY)
        other.sql("CREATE OR REPLACE VIEW v AS SELECT a * 100 AS a FROM t")
        t.refresh("s", Action.REINITIALIZE)


def test_sql_functions(t: Lake) -> None:
    t.sql(
        "CREATE FUNCTION plus_one(x INT) RETURNS INT RETURN x + 1",
        "CREATE FUNCTION plus_two(x INT) RETURNS INT RETURN plus_one(plus_one(x))",
    )
    t.stream("s", "SELECT plus_two(a) AS a, SUM(plus_one(b)) AS b FROM t GROUP BY plus_two(a)")
    t.insert("t", "7, 7")
    t.refresh("s", Action.DIFFERENTIAL)
    t.sql("CREATE OR REPLACE FUNCTION plus_one(x INT) RETURNS INT RETURN x + 100")
    assert "plus_one was replaced" in t.refresh("s", Action.REINITIALIZE).reason
    with open_lake(t.root) as other:
        other.queries = t.queries
        other.insert("t", "8, 8")
        other.refresh("s", Action.DIFFERENTIAL)
        other.sql("CREATE FUNCTION other_f(x INT) RETURNS INT RETURN x")
    t.stream("u", "SELECT other_f(a) AS a FROM t")
    t.sql("DROP FUNCTION other_f")
    t.insert("t", "9, 9")
    with refused(Code.SOURCE_CHANGED, "other_f"):
        t.ms.refresh_stream_table("u")


def test_sql_functions_that_hide_something(t: Lake) -> None:
    t.sql(
        "CREATE FUNCTION reads(x INT) RETURNS INT RETURN x + (SELECT MAX(b) FROM t)",
        "CREATE FUNCTION today(x INT) RETURNS DATE RETURN date_add(current_date(), x)",
        "CREATE FUNCTION who(x INT) RETURNS STRING RETURN current_user() || x",
    )
    for mode in ("AUTO", "FULL", "DIFFERENTIAL"):
        with refused(Code.UNSUPPORTED_SQL, "reads"):
            t.ms.create_stream_table("s", "SELECT reads(a) AS a FROM t", refresh_mode=mode)
        with refused(Code.VOLATILE_FUNCTION, "today"):
            t.ms.create_stream_table("s", "SELECT today(a) AS a FROM t", refresh_mode=mode)
    with refused(Code.VOLATILE_FUNCTION, "who"):
        t.ms.create_stream_table("s", "SELECT who(a) AS a FROM t", refresh_mode="DIFFERENTIAL")
    with pytest.warns(match="who"):
        t.stream("s", "SELECT who(a) AS a FROM t", "AUTO")


def test_a_later_process_finds_everything(t: Lake) -> None:
    t.stream("first_", "SELECT SUM(a) AS s FROM t")
    t.sql("CREATE VIEW on_stream AS SELECT s + 1 AS n FROM first_", "CREATE TABLE gone (a INT)")
    t.sql("CREATE VIEW broken AS SELECT a FROM gone", "DROP TABLE gone", "CREATE SCHEMA later_sales")
    t.stream("second_", "SELECT n FROM on_stream")
    with open_lake(t.root) as other:
        other.queries = t.queries
        assert other.rows("on_stream") == {(7,): 1}
        other.insert("t", "4, 4")
        other.refresh("second_", Action.DIFFERENTIAL)
        other.table("later_sales.x", "a INT", "1")
        other.stream("later_sales.y", "SELECT a FROM later_sales.x")
    t.assert_exact("first_")
    t.insert("later_sales.x", "2")
    t.queries["later_sales.y"] = "SELECT a FROM later_sales.x"
    t.refresh("later_sales.y", Action.APPEND_ONLY)
    t.sql("DROP STREAM TABLE first_ CASCADE")
    assert [s.name for s in t.ms.status()] == ["later_sales.y"]


def test_schemas(t: Lake) -> None:
    t.sql("CREATE SCHEMA IF NOT EXISTS obj_a", "CREATE SCHEMA IF NOT EXISTS obj_a")
    t.table("obj_a.x", "a INT", "1")
    t.stream("obj_a.s", "SELECT a FROM obj_a.x")
    with refused(Code.STREAM_TABLE_READ_ONLY, "obj_a.s"):
        t.sql("DROP SCHEMA obj_a CASCADE")
    with refused(Code.UNSUPPORTED_SQL, "schema.table"):
        t.sql("USE obj_a")
    t.ms.drop_stream_table("obj_a.s")
    t.sql("DROP SCHEMA obj_a CASCADE")
    with refused(Code.UNKNOWN_TABLE, "obj_a"):
        t.ms.create_stream_table("z", "SELECT a FROM obj_a.x")


def test_renamed_tables(t: Lake) -> None:
    t.stream("s", "SELECT a FROM t")
    t.sql("ALTER TABLE t RENAME TO renamed")
    with refused(Code.SOURCE_MISSING, "t"):
        t.ms.refresh_stream_table("s")
    t.sql("ALTER STREAM TABLE s AS SELECT a FROM renamed")
    t.queries["s"] = "SELECT a FROM renamed"
    assert t.last("s").action is Action.REINITIALIZE
    t.assert_exact("s")
    t.insert("renamed", "11, 11")
    t.refresh("s", Action.APPEND_ONLY)
    with open_lake(t.root) as other:
        other.queries = t.queries
        other.insert("renamed", "12, 12")
        other.refresh("s", Action.APPEND_ONLY)


def test_a_schema_of_another_open_lake(t: Lake, tmp_path: Path) -> None:
    """Spark would find the first lake's table under this name."""
    with open_lake(tmp_path / "other") as other:
        other.table("t", "a INT", "42")
        for text in ("SELECT * FROM default.t", "INSERT INTO `default` . t VALUES (1)"):
            with refused(Code.UNSUPPORTED_SQL, "not a schema of this lake", "omit"):
                other.ms.sql(text)
        assert other.ms.sql("SELECT x.a FROM t x WHERE 'default.t' <> ''").head()[0] == 42


def test_a_lake_with_a_schema_another_lake_has_is_opened(t: Lake, tmp_path: Path) -> None:
    """Both were made in processes of their own; here one of them has its schema under another name."""
    t.sql("CREATE SCHEMA sales")
    t.table("sales.t", "a INT", "1")
    with open_lake(tmp_path / "second") as second:
        second.table("mine", "a INT", "2")
        mine = second.ms._catalog.lake_object(ObjectKind.TABLE, TableName("default", "mine"))
        assert mine is not None
        second.ms._catalog.put_lake_object(replace(mine, name=TableName("sales", "t")))
        assert [r.a for r in second.ms.table("sales.t").collect()] == [2]
        second.stream("s", "SELECT SUM(a) AS s FROM sales.t")
        assert [r.s for r in second.ms.table("s").collect()] == [2]
    assert [r.a for r in t.ms.table("sales.t").collect()] == [1]
