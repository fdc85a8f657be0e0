"""The statements of stream tables, and what is refused of them."""

from __future__ import annotations

import doctest

import pytest

from millstream.errors import Code, MillstreamError, Position
from millstream.naming import TableName
from millstream.sql import statements
from millstream.sql.statements import (
    AlterStreamTable,
    AttachDatabase,
    CancelRefresh,
    CreateStreamTable,
    DescribeStreamTable,
    DetachDatabase,
    DropStreamTable,
    ExplainStreamTable,
    Other,
    RefreshStreamTable,
    ServeClause,
    ShowStreamTables,
    parse_statement,
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
            ("CANCEL REFRESH STREAM TABLE totals", CancelRefresh(TOTALS)),
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


def test_doctests() -> None:
    assert doctest.testmod(statements).failed == 0
