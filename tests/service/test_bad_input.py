"""Mistakes: each ends in its coded error, with a place in the text where there is one, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.lake import Lake, refused
from millstream import Action, Code, MillstreamError

pytestmark = pytest.mark.spark


@pytest.fixture
def t(lake: Lake) -> Iterator[Lake]:
    """A lake with a table, a view and a stream table; whatever a test tries, that is all there is at its end."""
    lake.table("t", "a INT, b STRING", "1, 'x'", "2, 'y'")
    lake.sql("CREATE VIEW v AS SELECT a FROM t")
    lake.stream("st", "SELECT a, COUNT(*) AS n FROM t GROUP BY a")
    before = everything(lake)
    yield lake
    assert everything(lake) == before


def everything(lake: Lake) -> dict[str, object]:
    """All that a half-made stream table could leave: catalog rows, directories, Spark's tables, contents."""
    return {
        "status": [(s.name, s.status, s.refresh_mode, s.schedule) for s in lake.ms.status()],
        "stored": lake.stored,
        "tables": sorted(r["tableName"] for r in lake.ms.spark.sql("SHOW TABLES").collect()),
        "files": sorted(p.name for p in (lake.root / "tables").iterdir()),
        "contents": lake.rows("st"),
    }


def error_of(lake: Lake, statement: str) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        lake.ms.sql(statement)
    return caught.value


CREATE = "CREATE STREAM TABLE bad REFRESH MODE DIFFERENTIAL AS\n"


QUERIES: tuple[tuple[str, Code, tuple[int, int] | None], ...] = (
    ("SELECT nope FROM t", Code.UNKNOWN_COLUMN, (2, 8)),
    ("SELECT a,\n  t.nope FROM t", Code.UNKNOWN_COLUMN, (3, 3)),
    ("SELECT a FROM missing", Code.UNKNOWN_TABLE, (2, 15)),
    ("SELECT a FROM other.missing", Code.UNKNOWN_TABLE, (2, 15)),
    ("SELECT a FRM t x", Code.SYNTAX_ERROR, (2, 14)),
    ("SELECT (a FROM t", Code.SYNTAX_ERROR, None),
    ("SELECT 'open FROM t", Code.SYNTAX_ERROR, None),
    ("DELETE FROM t", Code.SYNTAX_ERROR, None),
    ("WITH x AS (SELECT 1 AS a) INSERT INTO t SELECT a, a FROM x", Code.SYNTAX_ERROR, None),
    ("SELECT a, a FROM t", Code.DUPLICATE_COLUMN, None),
    ("SELECT a, b AS A FROM t", Code.DUPLICATE_COLUMN, None),
    ("SELECT a AS __ms_x FROM t", Code.NAME_INVALID, None),
    ("SELECT a, NULL AS nothing FROM t", Code.UNSUPPORTED_TYPE, None),
    ("SELECT a + b.c FROM t", Code.QUERY_INVALID, None),
    ("SELECT a FROM t GROUP BY b", Code.QUERY_INVALID, None),
    ("SELECT SUM(b, a) FROM t", Code.QUERY_INVALID, None),
    ("SELECT no_such_function(a) FROM t", Code.QUERY_INVALID, None),
    ("SELECT a FROM t VERSION AS OF 0", Code.UNSUPPORTED_SQL, (2, 15)),
    ("SELECT a, rand() AS r FROM t", Code.VOLATILE_FUNCTION, (2, 11)),
    ("SELECT a FROM t WHERE b = current_user()", Code.VOLATILE_FUNCTION, None),
    ("SELECT a FROM t WHERE CAST(b AS DATE) = 'today'", Code.VOLATILE_FUNCTION, None),
    ("SELECT a FROM t WHERE current_time() IS NULL", Code.VOLATILE_FUNCTION, None),
    ("SELECT a FROM t LIMIT 1", Code.UNSUPPORTED_SQL, (2, 17)),
    ("SELECT a, COLLECT_LIST(b) OVER (PARTITION BY a) AS r FROM t", Code.UNSUPPORTED_SQL, (2, 11)),
    ("SELECT a FROM t ORDER BY a LIMIT 1 + 1", Code.UNSUPPORTED_SQL, (2, 28)),
    ("SELECT a FROM t CLUSTER BY a", Code.UNSUPPORTED_SQL, None),
    ("SELECT a FROM t TABLESAMPLE (10 PERCENT)", Code.UNSUPPORTED_SQL, (2, 17)),
    ("SELECT a FROM t FOR UPDATE", Code.UNSUPPORTED_SQL, (2, 17)),
)


def test_queries_that_do_not_do(t: Lake) -> None:
    wrong: list[str] = []
    before = t.ms.table("t").count()
    for query, code, place in QUERIES:
        error = error_of(t, CREATE + query)
        found = (error.position.line, error.position.column) if error.position else None
        if error.code is not code or (place is not None and found != place):
            wrong.append(f"{query!r}: wanted {code} at {place}, got {found}: {error}")
        elif error.code in {Code.UNSUPPORTED_SQL, Code.VOLATILE_FUNCTION} and not error.hint:
            wrong.append(f"{query!r}: no hint")
        with pytest.raises(MillstreamError) as caught:
            t.ms.validate(query)
        if caught.value.code is not error.code:
            wrong.append(f"{query!r}: validate says {caught.value}")
    assert not wrong, "\n\n".join(wrong)
    assert t.ms.table("t").count() == before, "a text that was only to be described has been run"


def test_names(t: Lake) -> None:
    for name in ("t", "v", "st", "T", "`st`"):
        with refused(Code.NAME_TAKEN, name.strip("`").lower()):
            t.sql(f"CREATE STREAM TABLE {name} AS SELECT a FROM t")
    for statement in (
        "CREATE TABLE st (a INT)",
        "CREATE VIEW st AS SELECT 1 AS a",
        "CREATE OR REPLACE VIEW st AS SELECT 1 AS a",
    ):
        with refused(Code.NAME_TAKEN, "st"):
            t.sql(statement)
    for name in ("a.b.c", "has space", "1st", "", "__ms_x", "a-b"):
        with refused(Code.NAME_INVALID):
            t.ms.create_stream_table(name, "SELECT a FROM t")
    for call in (t.ms.explain, t.ms.verify, t.ms.staleness, t.ms.refresh_stream_table, t.ms.drop_stream_table):
        with refused(Code.NOT_A_STREAM_TABLE, "nobody"):
            call("nobody")
    with refused(Code.NOT_A_STREAM_TABLE, "nobody"):
        t.ms.refresh_history("nobody")
    with refused(Code.NOT_A_STREAM_TABLE, "nobody"):
        t.ms.alter_stream_table("nobody", schedule="5m")
    with refused(Code.UNKNOWN_TABLE, "nobody"):
        t.ms.table("nobody")
    t.sql("CREATE STREAM TABLE IF NOT EXISTS st AS SELECT b FROM t", "DROP STREAM TABLE IF EXISTS nobody")


def test_schedules_modes_and_statuses(t: Lake) -> None:
    for schedule in ("soon", "", "0s", "-5m", "61 * * * *", "1 2 3"):
        with refused(Code.SCHEDULE_INVALID):
            t.ms.create_stream_table("bad", "SELECT a FROM t", schedule=schedule)
        with refused(Code.SCHEDULE_INVALID):
            t.ms.alter_stream_table("st", schedule=schedule)
    with refused(Code.MODE_INVALID, "DIFFERENTIAL STRICT"):
        t.ms.create_stream_table("bad", "SELECT a FROM t", refresh_mode="INCREMENTAL")
    with refused(Code.MODE_INVALID):
        t.ms.refresh_stream_table("st", mode="QUICK")
    with refused(Code.STATUS_INVALID, "ACTIVE"):
        t.ms.alter_stream_table("st", status="ERROR")
    error = error_of(t, "ALTER STREAM TABLE st SET STATUS\n BROKEN")
    assert error.code is Code.STATUS_INVALID
    assert (error.position.line, error.position.column) == (2, 2)  # type: ignore[union-attr]
    with refused(Code.UNSUPPORTED_SQL, "dialect"):
        t.ms.create_stream_table("bad", "SELECT a FROM t", dialect="oracle")


def test_stream_tables_change_by_refresh_only(t: Lake) -> None:
    files = t.ms.spark.sql("DESCRIBE TABLE EXTENDED st").where("col_name = 'View Text'").head()[1].split("`")[-2]
    for statement in (
        "INSERT INTO st VALUES (9, 9)",
        "INSERT OVERWRITE st VALUES (9, 9)",
        "WITH x AS (SELECT 1 AS a, 1L AS n) INSERT INTO st SELECT * FROM x",
        "UPDATE st SET n = 0",
        "DELETE FROM st WHERE a = 1",
        "MERGE INTO st USING t ON st.a = t.a WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE st",
        "ALTER TABLE st ADD COLUMN x INT",
        "ALTER VIEW st AS SELECT 1 AS a",
        "DROP TABLE st",
        "DROP VIEW st",
        "OPTIMIZE st",
        "VACUUM st",
        "RESTORE TABLE st TO VERSION AS OF 0",
        f"DELETE FROM delta.`{files}`",
        f"VACUUM '{files}' RETAIN 0 HOURS",
        "BEGIN DELETE FROM t WHERE a = 77; DELETE FROM st; END",
    ):
        error = error_of(t, statement)
        assert error.code is Code.STREAM_TABLE_READ_ONLY, f"{statement}: {error}"
        assert error.position is not None, statement
        assert error.hint
    t.assert_exact("st")
    assert t.ms.sql("SELECT * FROM st").count() == 2
    assert t.ms.sql("DESCRIBE st").count() == 2


def test_cycles(t: Lake) -> None:
    t.stream("above", "SELECT MAX(n) AS m FROM st")
    t.sql("CREATE VIEW on_above AS SELECT m AS a, m AS n FROM above")
    for query in ("SELECT a, n FROM st", "SELECT CAST(m AS INT) AS a, m AS n FROM above", "SELECT a, n FROM on_above"):
        with refused(Code.CYCLE, "st"):
            t.ms.alter_stream_table("st", query=query)
    t.refresh("above", Action.NO_DATA)
    t.ms.drop_stream_table("above")
    t.sql("DROP VIEW on_above")


def test_dependents(t: Lake) -> None:
    t.stream("above", "SELECT MAX(n) AS m FROM st")
    t.stream("top", "SELECT m + 1 AS m FROM above")
    with refused(Code.DEPENDENTS_EXIST, "above", "CASCADE"):
        t.sql("DROP STREAM TABLE st")
    t.ms.drop_stream_table("above", cascade=True)


def test_a_first_load_that_fails_leaves_nothing(t: Lake) -> None:
    with refused(Code.REFRESH_FAILED, "bad", "by zero"):
        t.ms.create_stream_table("bad", "SELECT 1 / (a - 1) AS r FROM t")
    with refused(Code.REFRESH_FAILED, "bad"):
        t.ms.create_stream_table(
            "bad", "SELECT k, MAX(r) AS r FROM (SELECT a % 2 AS k, 1 / (a - 1) AS r FROM t) GROUP BY k"
        )


def test_auto_takes_what_differential_refuses_and_says_why(lake: Lake) -> None:
    lake.table("t", "a INT, b STRING", "1, 'x'", "2, 'y'", "2, 'z'")
    for name, query, why in (
        ("listed", "SELECT a, COLLECT_LIST(b) OVER (PARTITION BY a ORDER BY b) AS l FROM t", "UNSUPPORTED_SQL"),
        ("pivoted", "SELECT * FROM t PIVOT (COUNT(b) FOR a IN (1 AS one, 2 AS two))", "UNSUPPORTED_SQL"),
        ("clustered", "SELECT a, b FROM t CLUSTER BY a", "UNSUPPORTED_SQL"),
    ):
        with pytest.warns(match=f"{name} will be recomputed at each refresh: {why}"):
            lake.stream(name, query, "AUTO")
        explained = lake.ms.explain(name)
        assert not explained.supported
        assert why in explained.reasons[0]
    lake.insert("t", "3, 'w'")
    for name in lake.queries:
        assert lake.refresh(name, Action.FULL).reason.startswith("NOT_INCREMENTAL: UNSUPPORTED_SQL")
        lake.refresh(name, Action.NO_DATA)


def test_order_by_is_dropped_with_a_notice(lake: Lake) -> None:
    lake.table("t", "a INT", "2", "1")
    with pytest.warns(match="ORDER BY is dropped"):
        lake.stream("s", "SELECT a FROM t ORDER BY a")
    assert "ORDER BY" in str(lake.ms.explain("s"))
    lake.insert("t", "3")
    lake.refresh("s", Action.APPEND_ONLY)
    with pytest.warns(match="ORDER BY is dropped"):
        lake.sql("CREATE STREAM TABLE again AS SELECT a FROM t ORDER BY 1")


def test_one_statement_at_a_time(t: Lake) -> None:
    error = error_of(t, "SELECT 1;\nSELECT 2")
    assert error.code is Code.SYNTAX_ERROR
    assert error.position is not None
    assert error.position.line == 2
    for text in ("", " -- nothing", "CREATE STREAM TABLE", "CREATE STREAM TABLE x AS", "REFRESH STREAM x", "SELEC 1"):
        assert error_of(t, text).code is Code.SYNTAX_ERROR, text
    assert error_of(t, "SELECT nope FROM t").code is Code.UNKNOWN_COLUMN
    assert error_of(t, "INSERT INTO missing VALUES (1)").code is Code.UNKNOWN_TABLE
    assert error_of(t, "ATTACH POSTGRES 'x' AS y").code is Code.ADDRESS_INVALID
    assert error_of(t, "DETACH y").code is Code.NOT_ATTACHED
