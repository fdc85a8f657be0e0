"""Which statement a text is, what it writes, and that no character of it is lost."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import Code, MillstreamError, Position
from millstream.naming import TableName
from millstream.sql import statements
from millstream.sql.statements import (
    AlterStreamTable,
    AttachDatabase,
    CreateStreamTable,
    DescribeStreamTable,
    DetachDatabase,
    DropStreamTable,
    Effect,
    ExplainStreamTable,
    Other,
    RefreshStreamTable,
    ServeClause,
    ShowStreamTables,
    Target,
    parse_statement,
    relocated,
    split_statements,
)

TOTALS = TableName("default", "totals")


def other(text: str) -> Other:
    statement = parse_statement(text)
    assert isinstance(statement, Other)
    assert statement.text == text
    return statement


def refused(text: str) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        parse_statement(text)
    return caught.value


class TestOwnStatements:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("CREATE STREAM TABLE totals AS SELECT 1", CreateStreamTable(TOTALS, "SELECT 1", 30)),
            ("create stream table `Totals` as(select 1)", CreateStreamTable(TOTALS, "(select 1)", 31)),
            (
                "CREATE OR REPLACE STREAM TABLE s.t SCHEDULE '30s' REFRESH MODE FULL WITH NO DATA AS SELECT 1;",
                CreateStreamTable(
                    TableName("s", "t"), "SELECT 1", 84, "30s", "FULL", or_replace=True, with_no_data=True
                ),
            ),
            (
                "CREATE STREAM TABLE IF NOT EXISTS totals WITH NO DATA REFRESH MODE differential strict"
                " CALCULATED AS VALUES (1)",
                CreateStreamTable(
                    TOTALS,
                    "VALUES (1)",
                    101,
                    "CALCULATED",
                    "DIFFERENTIAL STRICT",
                    if_not_exists=True,
                    with_no_data=True,
                ),
            ),
            (
                "CREATE STREAM TABLE totals SCHEDULE CALCULATED REFRESH MODE 'differential  strict' AS SELECT 1",
                CreateStreamTable(TOTALS, "SELECT 1", 86, "CALCULATED", "DIFFERENTIAL STRICT"),
            ),
            (
                "CREATE STREAM TABLE totals SCHEDULE 'calculated' AS SELECT 1",
                CreateStreamTable(TOTALS, "SELECT 1", 52, "CALCULATED"),
            ),
            (
                "CREATE STREAM TABLE totals SCHEDULE '*/5 * * * *' REFRESH MODE AUTO AS SELECT 1",
                CreateStreamTable(TOTALS, "SELECT 1", 71, "*/5 * * * *", "AUTO"),
            ),
            ('CREATE STREAM TABLE "totals" AS SELECT 1', CreateStreamTable(TOTALS, "SELECT 1", 32)),
            (
                "CREATE STREAM TABLE spark_catalog.default.totals AS SELECT 1",
                CreateStreamTable(TOTALS, "SELECT 1", 52),
            ),
            ("CREATE STREAM TABLE `as` AS SELECT 1", CreateStreamTable(TableName("default", "as"), "SELECT 1", 28)),
            (
                "-- first\nCREATE /* a ; */ STREAM TABLE totals AS -- why\n  SELECT 1 -- end\n ; -- behind",
                CreateStreamTable(TOTALS, "-- why\n  SELECT 1 -- end", 49),
            ),
            ("ALTER STREAM TABLE totals SET SCHEDULE '5m'", AlterStreamTable(TOTALS, set_schedule="5m")),
            ("ALTER STREAM TABLE totals SET SCHEDULE CALCULATED", AlterStreamTable(TOTALS, set_schedule="CALCULATED")),
            ("ALTER STREAM TABLE totals SET REFRESH MODE full;", AlterStreamTable(TOTALS, set_refresh_mode="FULL")),
            (
                "ALTER STREAM TABLE totals SET REFRESH MODE DIFFERENTIAL STRICT",
                AlterStreamTable(TOTALS, set_refresh_mode="DIFFERENTIAL STRICT"),
            ),
            ("ALTER STREAM TABLE totals SET STATUS suspended", AlterStreamTable(TOTALS, set_status="SUSPENDED")),
            ("ALTER STREAM TABLE totals SET STATUS 'ACTIVE'", AlterStreamTable(TOTALS, set_status="ACTIVE")),
            ("ALTER STREAM TABLE totals AS\nSELECT 2", AlterStreamTable(TOTALS, query="SELECT 2", query_offset=29)),
            (
                "CREATE STREAM TABLE totals SCHEDULE '1m' SERVE TO shop . public.`to tals` WITH NO DATA AS SELECT 1",
                CreateStreamTable(
                    TOTALS, "SELECT 1", 90, schedule="1m", with_no_data=True, serve=ServeClause("shop.public.`to tals`")
                ),
            ),
            (
                'ALTER STREAM TABLE totals SERVE TO shop."Sales".totals;',
                AlterStreamTable(TOTALS, serve=ServeClause('shop."Sales".totals')),
            ),
            (
                "alter stream table totals serve to shop.totals",
                AlterStreamTable(TOTALS, serve=ServeClause("shop.totals")),
            ),
            (
                "CREATE STREAM TABLE totals SERVE TO shop.totals with (Owner = app, grants='reader, PUBLIC') "
                "WITH NO DATA AS SELECT 1",
                CreateStreamTable(
                    TOTALS,
                    "SELECT 1",
                    108,
                    with_no_data=True,
                    serve=ServeClause("shop.totals", "app", ("reader", "PUBLIC")),
                ),
            ),
            (
                "ALTER STREAM TABLE totals SERVE TO shop.a.totals WITH (user_triggers = 'off')",
                AlterStreamTable(TOTALS, serve=ServeClause("shop.a.totals", user_triggers="off")),
            ),
            ("ALTER STREAM TABLE totals STOP SERVING", AlterStreamTable(TOTALS, stop_serving=True)),
            (
                "ALTER STREAM TABLE totals STOP SERVING CASCADE",
                AlterStreamTable(TOTALS, stop_serving=True, cascade=True),
            ),
            (
                "ALTER STREAM TABLE totals STOP SERVING KEEP TABLE",
                AlterStreamTable(TOTALS, stop_serving=True, keep_table=True),
            ),
            ("DROP STREAM TABLE totals", DropStreamTable(TOTALS)),
            ("DROP STREAM TABLE IF EXISTS totals CASCADE", DropStreamTable(TOTALS, if_exists=True, cascade=True)),
            ("REFRESH STREAM TABLE totals", RefreshStreamTable(TOTALS)),
            ("REFRESH STREAM TABLE totals FULL ;", RefreshStreamTable(TOTALS, full=True)),
            ("SHOW STREAM TABLES", ShowStreamTables()),
            ("DESCRIBE STREAM TABLE totals", DescribeStreamTable(TOTALS)),
            ("desc stream table totals", DescribeStreamTable(TOTALS)),
            ("EXPLAIN STREAM TABLE totals", ExplainStreamTable(TOTALS)),
            (
                "CREATE STREAM TABLE totals DIALECT 'Postgres' AS SELECT 1",
                CreateStreamTable(TOTALS, "SELECT 1", 49, dialect="postgres"),
            ),
            (
                "ALTER STREAM TABLE totals DIALECT spark AS SELECT 1",
                AlterStreamTable(TOTALS, query="SELECT 1", query_offset=43, dialect="spark"),
            ),
            ("ATTACH POSTGRES 'env:SHOP' AS Shop", AttachDatabase("shop", "env:SHOP")),
            ("attach postgres 'service=s' as `shop` cdc 'WAL';", AttachDatabase("shop", "service=s", "wal")),
            ("DETACH shop", DetachDatabase("shop")),
            ("DETACH shop CASCADE", DetachDatabase("shop", cascade=True)),
        ],
    )
    def test_recognised(self, text: str, expected: object) -> None:
        assert parse_statement(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "DESCRIBE stream",
            "DESCRIBE TABLE stream",
            "SHOW TABLES",
            "EXPLAIN SELECT 1",
            "REFRESH TABLE stream",
            "CREATE TABLE stream (id INT)",
            "DROP TABLE stream",
            "CREATE STREAMING TABLE t AS SELECT 1",
            "SELECT 'CREATE STREAM TABLE x AS SELECT 1'",
        ],
    )
    def test_left_to_spark(self, text: str) -> None:
        other(text)

    def test_a_query_of_another_dialect_is_not_judged_here(self) -> None:
        # In PostgreSQL the backslash is a character like any other, to Spark's tokenizer the string never ends.
        text = r"CREATE STREAM TABLE totals AS SELECT 'C:\'"
        assert parse_statement(text) == CreateStreamTable(TOTALS, r"SELECT 'C:\'", 30)


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "line", "column", "length", "expected"),
        [
            ("CREATE STREAM totals AS SELECT 1", 1, 15, 6, "TABLE"),
            ("CREATE STREAM TABLE", 1, 20, 1, "a name"),
            ("CREATE STREAM TABLE 'totals' AS SELECT 1", 1, 21, 8, "a name"),
            ("CREATE STREAM TABLE totals SELECT 1", 1, 28, 6, "AS and the query"),
            ("CREATE STREAM TABLE totals AS", 1, 30, 1, "a query after AS"),
            ("CREATE STREAM TABLE totals AS ; ", 1, 30, 1, "a query after AS"),
            ("CREATE STREAM TABLE totals\n  SCHEDULE 1m AS SELECT 1", 2, 12, 2, "a quoted schedule"),
            ("CREATE STREAM TABLE totals SCHEDULE '1m' CALCULATED AS SELECT 1", 1, 42, 10, "REFRESH MODE"),
            ("CREATE STREAM TABLE totals REFRESH AS SELECT 1", 1, 28, 7, "REFRESH MODE"),
            ("CREATE OR REPLACE STREAM TABLE IF NOT EXISTS totals AS SELECT 1", 1, 32, 2, "exclude each other"),
            ("ALTER STREAM TABLE totals", 1, 26, 1, "SET"),
            ("ALTER STREAM TABLE totals SET SPEED 3", 1, 31, 5, "SCHEDULE, REFRESH MODE or STATUS"),
            ("ALTER STREAM TABLE totals SET STATUS ACTIVE now", 1, 45, 3, "the end of the statement"),
            ("DROP STREAM totals", 1, 13, 6, "TABLE"),
            ("DROP STREAM TABLE totals RESTRICT", 1, 26, 8, "the end of the statement"),
            ("REFRESH STREAM TABLE totals DIFFERENTIAL", 1, 29, 12, "the end of the statement"),
            ("SHOW STREAM TABLE", 1, 13, 5, "TABLES"),
            ("DESCRIBE STREAM TABLE a b", 1, 25, 1, "the end of the statement"),
        ],
    )
    def test_syntax_error_says_what_was_expected_and_where(
        self, text: str, line: int, column: int, length: int, expected: str
    ) -> None:
        error = refused(text)
        assert error.code is Code.SYNTAX_ERROR
        assert error.position == Position(line, column, length)
        assert expected in error.message
        assert error.hint is not None
        assert error.hint.startswith("the form is ")
        assert error.sql == text

    @pytest.mark.parametrize(
        ("text", "column", "what"),
        [
            ("SELECT 'abc", 8, "string"),
            ('SELECT 1, /* ok */ "abc', 20, "string"),
            ("DROP STREAM TABLE `abc", 19, "quoted name"),
            ("DROP TABLE t /* abc", 14, "comment"),
            ("/* abc", 1, "comment"),
        ],
    )
    def test_what_does_not_end(self, text: str, column: int, what: str) -> None:
        error = refused(text)
        assert error.code is Code.SYNTAX_ERROR
        assert error.position == Position(1, column)
        assert what in error.message

    @pytest.mark.parametrize(
        ("text", "code", "column"),
        [
            ("CREATE STREAM TABLE a.b.c AS SELECT 1", Code.NAME_INVALID, 21),
            ("CREATE STREAM TABLE `a.b` AS SELECT 1", Code.NAME_INVALID, 21),
            ("CREATE STREAM TABLE `a b` AS SELECT 1", Code.NAME_INVALID, 21),
            ("CREATE STREAM TABLE __ms_x AS SELECT 1", Code.NAME_INVALID, 21),
            ("CREATE STREAM TABLE t REFRESH MODE INCREMENTAL AS SELECT 1", Code.MODE_INVALID, 36),
            ("CREATE STREAM TABLE t REFRESH MODE AUTO STRICT AS SELECT 1", Code.SYNTAX_ERROR, 41),
            ("ALTER STREAM TABLE t SET REFRESH MODE 'STRICT'", Code.MODE_INVALID, 39),
            ("ALTER STREAM TABLE t SET STATUS ERROR", Code.STATUS_INVALID, 33),
            ("CREATE STREAM TABLE t SERVE TO shop AS SELECT 1", Code.SYNTAX_ERROR, 37),
            ("ALTER STREAM TABLE t SERVE TO 'shop.public.t'", Code.SYNTAX_ERROR, 31),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH NO DATA", Code.SYNTAX_ERROR, 38),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH (colour = 'red')", Code.SYNTAX_ERROR, 44),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH (owner = a, owner = b)", Code.SYNTAX_ERROR, 55),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH (owner = )", Code.SYNTAX_ERROR, 52),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH (grants = 'a,,b')", Code.SYNTAX_ERROR, 53),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH (owner = 'a'", Code.SYNTAX_ERROR, 55),
            ("ALTER STREAM TABLE t SERVE TO shop.t WITH ()", Code.SYNTAX_ERROR, 44),
            ("ALTER STREAM TABLE t STOP SERVING CASCADE KEEP TABLE", Code.SYNTAX_ERROR, 43),
            ("CREATE STREAM TABLE t DIALECT AS SELECT 1", Code.SYNTAX_ERROR, 34),
            ("ALTER STREAM TABLE t DIALECT spark SET STATUS ACTIVE", Code.SYNTAX_ERROR, 36),
            ("DETACH a.b", Code.SYNTAX_ERROR, 11),
            ("SELECT 1; SELECT 2", Code.SYNTAX_ERROR, 11),
            ("SHOW STREAM TABLES; SELECT 2", Code.SYNTAX_ERROR, 21),
        ],
    )
    def test_coded(self, text: str, code: Code, column: int) -> None:
        error = refused(text)
        assert error.code is code
        assert error.position is not None
        assert (error.position.line, error.position.column) == (1, column)
        assert error.hint

    @pytest.mark.parametrize(
        "text",
        [
            "ATTACH 'postgresql://me:secret@host/db' AS shop",
            "ATTACH POSTGRES postgresql://me:secret@host/db AS shop",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db AS shop",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db'",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db' AS a.b",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db' AS shop CDC",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db' AS shop now",
            "ATTACH POSTGRES 'postgresql://me:secret@host/db' AS shop; SELECT 1",
        ],
    )
    def test_a_password_is_not_repeated(self, text: str) -> None:
        error = refused(text)
        assert error.code is Code.SYNTAX_ERROR
        assert "secret" not in str(error)

    @pytest.mark.parametrize("text", ["", "  \n", "-- nothing", ";", "; /* nothing */ ;"])
    def test_no_statement(self, text: str) -> None:
        assert refused(text).code is Code.SYNTAX_ERROR

    @pytest.mark.parametrize(
        "text",
        [
            "INSERT INTO ${target} VALUES (1)",
            "INSERT INTO :target VALUES (1)",
            "DELETE FROM IDENTIFIER('to' || 'tals')",
            "DROP TABLE IDENTIFIER(:name)",
        ],
    )
    def test_a_target_that_cannot_be_seen(self, text: str) -> None:
        assert refused(text).code is Code.UNSUPPORTED_SQL


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


class TestSplit:
    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            ("SELECT 1", ["SELECT 1"]),
            ("SELECT 1;\nSELECT 2\n;", ["SELECT 1", "SELECT 2"]),
            ("SELECT ';', \";\", `;`, r'\\'; -- ;\n SELECT /* ; /* ; */ ; */ 2", None),
            ("CREATE VIEW v AS $$ a;'b $$; SELECT 2", ["CREATE VIEW v AS $$ a;'b $$", "SELECT 2"]),
            (";; SELECT 1 ;; -- nothing ;\n;", ["SELECT 1"]),
            ("SELECT 'a\\';b'; SELECT 2", ["SELECT 'a\\';b'", "SELECT 2"]),
            ("SHOW TABLES LIKE 'a;b'; SELECT 2", ["SHOW TABLES LIKE 'a;b'", "SELECT 2"]),
            (
                "BEGIN SELECT CASE WHEN 1 THEN 2 END; END; SELECT 2",
                ["BEGIN SELECT CASE WHEN 1 THEN 2 END; END", "SELECT 2"],
            ),
            (
                "x: BEGIN IF 1 THEN SELECT 1; END IF; END x; SELECT 2",
                ["x: BEGIN IF 1 THEN SELECT 1; END IF; END x", "SELECT 2"],
            ),
            ("SELECT 1; SELECT 'open; SELECT 3", ["SELECT 1", "SELECT 'open; SELECT 3"]),
            ("", []),
            (" -- nothing", []),
        ],
    )
    def test_pieces(self, text: str, pieces: list[str] | None) -> None:
        found = split_statements(text)
        assert all(text[s.offset : s.offset + len(s.text)] == s.text for s in found)
        if pieces is not None:
            assert [s.text for s in found] == pieces
        else:
            assert len(found) == 2

    def test_an_error_in_a_piece_points_into_the_whole(self) -> None:
        text = "SELECT 1;\n\n  SHOW STREAM\n  tabels;"
        piece = split_statements(text)[1]
        error = relocated(refused(piece.text), text, piece.offset)
        assert error.code is Code.SYNTAX_ERROR
        assert error.position == Position(4, 3, 6)
        assert "    tabels;\n    ^^^^^^" in str(error)


# Texts of all characters, and texts that look like SQL: quotes, comments and semicolons in odd places.
_PIECES = [
    "'",
    '"',
    "`",
    "--",
    "/*",
    "*/",
    ";",
    "\\",
    "\n",
    "\r",
    " ",
    "as",
    "x",
    "1",
    "(",
    ")",
    "select",
    "é",
    "\u2028",
    "{#",
    "$",
]
_SQL_LIKE = st.lists(st.sampled_from(_PIECES), max_size=25).map("".join)
_TEXTS = st.text(max_size=40) | _SQL_LIKE
_STRINGS = st.text(max_size=20).map(lambda s: "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'")
_NAMES = st.text(min_size=1, max_size=20).map(lambda s: "`" + s.replace("`", "``") + "`")
_COMMENTS = st.text("ab;'\"` -", max_size=20).map(lambda s: f"/*{s}*/")
_QUERIES = st.lists(
    _STRINGS | _NAMES | _COMMENTS | st.sampled_from(["SELECT", ",", "1", "(", ")", "AS", "\n", "\t"]), min_size=1
)


class TestNothingIsLost:
    @given(_QUERIES)
    def test_a_query_survives(self, parts: list[str]) -> None:
        query = "SELECT " + " ".join(parts) + " FROM t"
        head = "CREATE STREAM TABLE totals SCHEDULE '1m' AS "
        for text in (head + query, f"{head}\n\t{query}\n ;  ", f"{head}{query};-- done"):
            statement = parse_statement(text)
            assert isinstance(statement, CreateStreamTable)
            assert statement.query == query
            assert text[statement.query_offset :].startswith(query)

    @given(_TEXTS)
    @example("'\\")
    @example("/*")
    def test_any_text_is_taken_or_refused_with_a_code(self, text: str) -> None:
        for head in ("", "CREATE STREAM TABLE totals AS x ", "ALTER STREAM TABLE totals ", "INSERT INTO "):
            whole = head + text
            try:
                statement = parse_statement(whole)
            except MillstreamError as e:
                str(e)
                continue
            if isinstance(statement, CreateStreamTable):
                end = statement.query_offset + len(statement.query)
                assert whole[statement.query_offset : end] == statement.query
                assert statement.query.startswith("x")
                rest = parse_rest(whole[end:])
                assert rest == ""
            elif isinstance(statement, Other):
                assert statement.text == whole

    @given(_TEXTS)
    def test_split_is_a_cut(self, text: str) -> None:
        end = 0
        for piece in split_statements(text):
            assert piece.offset >= end
            assert text[piece.offset : piece.offset + len(piece.text)] == piece.text
            end = piece.offset + len(piece.text)

    @given(st.lists(_QUERIES.map(lambda parts: "SELECT " + " ".join(parts) + " x"), max_size=4))
    def test_split_finds_every_statement(self, queries: list[str]) -> None:
        assert [s.text for s in split_statements(";".join(queries))] == queries


def parse_rest(text: str) -> str:
    """What is behind a query but blanks, comments and semicolons."""
    return " ".join(s.text for s in split_statements(text))


def test_doctests() -> None:
    assert doctest.testmod(statements).failed == 0
