"""WAIT FOR STREAM TABLE: its forms, and what is refused."""

from __future__ import annotations

import pytest

from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.sql.statements import WaitForStreamTable, WaitPoint, changes_session, parse_statement

TOTALS = TableName.parse("totals")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WAIT FOR STREAM TABLE totals", WaitForStreamTable(TOTALS)),
        ("wait for stream table totals timeout '10s';", WaitForStreamTable(TOTALS, timeout="10s")),
        (
            "WAIT FOR STREAM TABLE totals AFTER LSN '0/16B3748'",
            WaitForStreamTable(TOTALS, (WaitPoint("LSN", "0/16B3748"),)),
        ),
        (
            "WAIT FOR STREAM TABLE totals AFTER TRANSACTION 18446744073709551615 IN shop, VERSION 7 IN so TIMEOUT '1m'",
            WaitForStreamTable(
                TOTALS, (WaitPoint("TRANSACTION", 2**64 - 1, "shop"), WaitPoint("VERSION", 7, "so")), "1m"
            ),
        ),
    ],
)
def test_forms(text: str, expected: WaitForStreamTable) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "WAIT FOR STREAM TABLE",
        "WAIT FOR STREAM TABLE totals AFTER",
        "WAIT FOR STREAM TABLE totals AFTER LSN 16",
        "WAIT FOR STREAM TABLE totals AFTER VERSION 1.5",
        "WAIT FOR STREAM TABLE totals AFTER VERSION 1,",
        "WAIT FOR STREAM TABLE totals TIMEOUT 10",
        "WAIT FOR STREAM TABLE totals TIMEOUT '10s' AFTER VERSION 1",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        parse_statement(text)
    assert caught.value.code is Code.SYNTAX_ERROR
    assert caught.value.position is not None


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("SELECT 1", False),
        ("INSERT INTO t VALUES (1)", False),
        ("CREATE STREAM TABLE s AS SELECT 1 AS x", False),
        ("not SQL at all (", False),
        ("SET spark.sql.ansi.enabled = false", True),
        ("SET TIME ZONE 'UTC'", True),
        ("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1", True),
        ("CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1", True),
        ("DECLARE VARIABLE x INT", True),
        ("BEGIN SET TIME ZONE 'UTC'; END", True),
    ],
)
def test_statements_that_change_their_session(text: str, changes: bool) -> None:
    assert changes_session(text) is changes
