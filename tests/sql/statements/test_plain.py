"""Statements that are Spark's: what they write, and where."""

from __future__ import annotations

import pytest

from millstream.errors import Position
from millstream.naming import TableName
from millstream.sql.statements import (
    Effect,
    Other,
    Target,
    parse_statement,
)


def other(text: str) -> Other:
    statement = parse_statement(text)
    assert isinstance(statement, Other)
    assert statement.text == text
    return statement


class TestPlainStatements:
    @pytest.mark.parametrize(
        ("text", "verb", "kind", "target", "effect"),
        [
            ("INSERT INTO t VALUES (1)", "INSERT", "TABLE", "t", Effect.ROWS),
            ("insert into table s.t select 1", "INSERT", "TABLE", "s.t", Effect.ROWS),
            ("INSERT OVERWRITE t SELECT 1", "INSERT", "TABLE", "t", Effect.ROWS),
            ("INSERT OVERWRITE TABLE t PARTITION (d = 1) SELECT 1", "INSERT", "TABLE", "t", Effect.ROWS),
            ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1", "INSERT", "TABLE", "t", Effect.ROWS),
            ("INSERT INTO table VALUES (1)", "INSERT", "TABLE", "table", Effect.ROWS),
            ("INSERT INTO TABLE table VALUES (1)", "INSERT", "TABLE", "table", Effect.ROWS),
            ("INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1", "INSERT", "DIRECTORY", "/x", Effect.ROWS),
            ("WITH a AS (SELECT 1), b (x) AS (SELECT ')') INSERT INTO t SELECT 1", "INSERT", "TABLE", "t", Effect.ROWS),
            ("WITH RECURSIVE insert AS (SELECT 1) DELETE FROM t WHERE x", "DELETE", "TABLE", "t", Effect.ROWS),
            ("/* INSERT INTO a */ INSERT -- INTO b\n INTO c VALUES ('INTO d')", "INSERT", "TABLE", "c", Effect.ROWS),
            ("UPDATE `t` SET x = 1", "UPDATE", "TABLE", "t", Effect.ROWS),
            ("DELETE FROM spark_catalog.default.t", "DELETE", "TABLE", "spark_catalog.default.t", Effect.ROWS),
            ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE", "MERGE", "TABLE", "t", Effect.ROWS),
            ("TRUNCATE TABLE t", "TRUNCATE", "TABLE", "t", Effect.ROWS),
            ("COPY INTO t FROM '/x' FILEFORMAT = CSV", "COPY", "TABLE", "t", Effect.ROWS),
            ("LOAD DATA INPATH '/x' OVERWRITE INTO TABLE t", "LOAD", "TABLE", "t", Effect.ROWS),
            ("RESTORE TABLE t TO VERSION AS OF 3", "RESTORE", "TABLE", "t", Effect.ROWS),
            ("RESTORE t TO VERSION AS OF 3", "RESTORE", "TABLE", "t", Effect.ROWS),
            ("OPTIMIZE t ZORDER BY (a)", "OPTIMIZE", "TABLE", "t", Effect.FILES),
            ("VACUUM t RETAIN 0 HOURS", "VACUUM", "TABLE", "t", Effect.FILES),
            ("VACUUM '/lake/t'", "VACUUM", "TABLE", "/lake/t", Effect.FILES),
            ("OPTIMIZE delta.`/lake/t`", "OPTIMIZE", "TABLE", "/lake/t", Effect.FILES),
            ("REORG TABLE t APPLY (PURGE)", "REORG", "TABLE", "t", Effect.FILES),
            ("CREATE TABLE t (a INT)", "CREATE", "TABLE", "t", Effect.DEFINITION),
            ("CREATE EXTERNAL TABLE t (a INT)", "CREATE", "TABLE", "t", Effect.DEFINITION),
            ("REPLACE TABLE t AS SELECT 1", "REPLACE", "TABLE", "t", Effect.DEFINITION),
            ("CREATE OR REPLACE VIEW v (a) AS SELECT 1", "CREATE", "VIEW", "v", Effect.DEFINITION),
            ("CREATE TEMPORARY VIEW v AS SELECT 1", "CREATE", "VIEW", "v", Effect.SESSION),
            ("CREATE OR REPLACE GLOBAL TEMP VIEW v AS SELECT 1", "CREATE", "VIEW", "v", Effect.SESSION),
            ("CREATE FUNCTION f(x INT) RETURNS INT RETURN x + 1", "CREATE", "FUNCTION", "f", Effect.DEFINITION),
            ("CREATE DATABASE IF NOT EXISTS s", "CREATE", "SCHEMA", "s", Effect.DEFINITION),
            ("DROP TABLE IF EXISTS t", "DROP", "TABLE", "t", Effect.DEFINITION),
            ("DROP VIEW v", "DROP", "VIEW", "v", Effect.DEFINITION),
            ("DROP TEMPORARY FUNCTION f", "DROP", "FUNCTION", "f", Effect.SESSION),
            ("ALTER VIEW v AS SELECT 1", "ALTER", "VIEW", "v", Effect.DEFINITION),
            ("COMMENT ON TABLE t IS 'x'", "COMMENT", "TABLE", "t", Effect.DEFINITION),
            ("CONVERT TO DELTA parquet.`/x`", "CONVERT", "TABLE", "/x", Effect.DEFINITION),
            ("MSCK REPAIR TABLE t", "MSCK", "TABLE", "t", Effect.DEFINITION),
            ("USE s", "USE", "SCHEMA", "s", Effect.SESSION),
            ("CACHE TABLE t", "CACHE", "TABLE", "t", Effect.SESSION),
            ("DECLARE OR REPLACE x INT DEFAULT 1", "DECLARE", "VARIABLE", "x", Effect.SESSION),
            ("INSERT INTO IDENTIFIER('s.`t`') VALUES (1)", "INSERT", "TABLE", "s.t", Effect.ROWS),
            ("EXECUTE IMMEDIATE 'DELETE FROM t'", "DELETE", "TABLE", "t", Effect.ROWS),
        ],
    )
    def test_target(self, text: str, verb: str, kind: str, target: str, effect: Effect) -> None:
        found = other(text)
        assert (found.verb, found.kind, found.effect) == (verb, kind, effect)
        assert [str(t) for t in found.targets] == [target]

    @pytest.mark.parametrize(
        ("text", "verb", "effect"),
        [
            ("SELECT * FROM t", "SELECT", Effect.READ),
            ("WITH update AS (SELECT 1) SELECT * FROM update", "SELECT", Effect.READ),
            ("(SELECT 1) UNION ALL (SELECT 2)", "SELECT", Effect.READ),
            ("VALUES (1)", "VALUES", Effect.READ),
            ("TABLE t", "TABLE", Effect.READ),
            ("FROM t |> WHERE a |> SELECT b", "FROM", Effect.READ),
            ("EXPLAIN INSERT INTO t VALUES (1)", "EXPLAIN", Effect.READ),
            ("SHOW CREATE TABLE t", "SHOW", Effect.READ),
            ("DESCRIBE HISTORY t", "DESCRIBE", Effect.READ),
            ("SET spark.sql.ansi.enabled = true", "SET", Effect.SESSION),
            ("ADD JAR '/x.jar'", "ADD", Effect.SESSION),
            ("CALL system.f(1)", "CALL", Effect.UNKNOWN),
            ("EXECUTE IMMEDIATE query_text", "EXECUTE", Effect.UNKNOWN),
            ("EXECUTE IMMEDIATE 'DELETE FROM ' || 't'", "EXECUTE", Effect.UNKNOWN),
        ],
    )
    def test_without_target(self, text: str, verb: str, effect: Effect) -> None:
        found = other(text)
        assert (found.verb, found.effect, found.targets) == (verb, effect, ())

    def test_several_targets(self) -> None:
        found = other("FROM s INSERT INTO a SELECT (1) INSERT OVERWRITE TABLE b.c SELECT 2")
        assert found.verb == "INSERT"
        assert found.targets == (Target(("a",)), Target(("b", "c")))

    def test_script_names_what_its_statements_change(self) -> None:
        found = other(
            "BEGIN DECLARE n INT; IF n > 0 THEN INSERT INTO a VALUES (1); END IF;"
            " MERGE INTO b USING a ON 1 = 1 WHEN MATCHED THEN UPDATE SET x = CASE WHEN 1 THEN 2 ELSE 3 END;"
            " SELECT * FROM c; WHILE n > 0 DO UPDATE d SET e = 1; END WHILE; END"
        )
        assert (found.verb, found.kind, found.effect) == ("BEGIN", "SCRIPT", Effect.ROWS)
        assert [str(t) for t in found.targets] == ["a", "b", "d"]

    def test_flags(self) -> None:
        assert other("CREATE OR REPLACE TABLE t AS SELECT 1").or_replace
        assert other("CREATE TABLE IF NOT EXISTS t (a INT)").if_not_exists
        assert other("DROP TABLE IF EXISTS t").if_exists
        assert other("DROP SCHEMA s CASCADE").cascade
        assert other("CREATE TEMP VIEW v AS SELECT 1").temporary

    @pytest.mark.parametrize(
        ("change", "columns"),
        [
            ("DROP COLUMN a", ["a"]),
            ("DROP COLUMN IF EXISTS a", ["a"]),
            ("DROP COLUMNS (a, `b`, c.d)", ["a", "b", "c"]),
            ("RENAME COLUMN a TO b", ["a"]),
            ("ALTER COLUMN a TYPE BIGINT", ["a"]),
            ("ALTER COLUMN a DROP NOT NULL", ["a"]),
            ("ALTER a TYPE BIGINT", ["a"]),
            ("ALTER COLUMN a COMMENT 'x', b TYPE DECIMAL(10, 2)", ["b"]),
            ("CHANGE COLUMN a b BIGINT COMMENT 'x'", ["a"]),
            ("REPLACE COLUMNS (a INT)", []),
        ],
    )
    def test_alter_table_that_changes_columns(self, change: str, columns: list[str]) -> None:
        found = other(f"ALTER TABLE s.t {change}")
        assert found.changes_columns
        assert list(found.columns) == columns

    @pytest.mark.parametrize(
        "change",
        [
            "ADD COLUMN a INT",
            "ADD COLUMNS (a INT, b INT)",
            "ALTER COLUMN a COMMENT 'TYPE'",
            "ALTER COLUMN a SET DEFAULT coalesce(1, 2)",
            "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
            "ADD CONSTRAINT c CHECK (a > 0)",
            "PARTITION (d = 1) RENAME TO PARTITION (d = 2)",
            "RENAME TO u",
        ],
    )
    def test_alter_table_that_does_not(self, change: str) -> None:
        found = other(f"ALTER TABLE t {change}")
        assert not found.changes_columns
        assert found.columns == ()

    def test_rename(self) -> None:
        assert other("ALTER TABLE t RENAME TO s.u").renamed_to == Target(("s", "u"))
        assert other("ALTER VIEW v RENAME TO w").renamed_to == Target(("w",))
        assert other("ALTER TABLE t RENAME COLUMN a TO b").renamed_to is None

    def test_position_of_a_target(self) -> None:
        target = other("INSERT INTO\n  s . `t` VALUES (1)").targets[0]
        assert target.position == Position(2, 3, 7)


class TestTarget:
    @pytest.mark.parametrize(
        ("parts", "name"),
        [
            (("T",), TableName("default", "t")),
            (("S", "T"), TableName("s", "t")),
            (("Spark_Catalog", "default", "t"), TableName("default", "t")),
            (("other", "default", "t"), None),
            ((), None),
        ],
    )
    def test_table_name(self, parts: tuple[str, ...], name: TableName | None) -> None:
        assert Target(parts).table_name() == name

    def test_current_schema(self) -> None:
        assert Target(("t",)).table_name("Sales") == TableName("sales", "t")

    def test_schema_name(self) -> None:
        assert Target(("S",)).schema_name() == "s"
        assert Target(("spark_catalog", "s")).schema_name() == "s"
        assert Target(("other", "s")).schema_name() is None

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ("delta.`/lake/t`", "/lake/t"),
            ("DELTA.`s3a://bucket/t`", "s3a://bucket/t"),
            ("delta.t", None),
            ("s.`/lake/t`", None),
        ],
    )
    def test_path(self, text: str, path: str | None) -> None:
        assert other(f"UPDATE {text} SET a = 1").targets[0].path == path
