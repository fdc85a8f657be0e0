"""A query's own text over other tables, as PostgreSQL itself is to run it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millstream.sql.postgres.query_on_postgres import open_constructs, over_tables, unanswerable

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 250, tzinfo=UTC)
NOW = "TIMESTAMPTZ '2024-02-29 12:30:15.000250+00'"


def over(text: str) -> str:
    return over_tables(text, lambda parts: f"<{'|'.join(parts)}>", MOMENT)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT * FROM shop.public.Orders", 'SELECT * FROM <shop|public|orders> AS "orders"'),
        ('SELECT * FROM shop."Ünï"."T a" t(x)', "SELECT * FROM <shop|Ünï|T a> t(x)"),
        ("SELECT s.p.t.a, t.b, x.t FROM s.p.t, x", 'SELECT t.a, t.b, x.t FROM <s|p|t> AS "t", <x> AS "x"'),
        ("WITH t AS (SELECT 1) SELECT * FROM t, s.t u", "WITH t AS (SELECT 1) SELECT * FROM t, <s|t> u"),
        ("SELECT (SELECT max(a) FROM t) FROM u; ", 'SELECT (SELECT max(a) FROM <t> AS "t") FROM <u> AS "u"'),
        ("SELECT a /* t */ FROM t -- t", 'SELECT a /* t */ FROM <t> AS "t" -- t'),
    ],
)
def test_tables(text: str, wanted: str) -> None:
    assert over(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT now(), 'now()'", f"SELECT (SELECT {NOW} AS now), 'now()'"),
        ("SELECT pg_catalog.now()", f"SELECT (SELECT {NOW} AS now)"),
        ("SELECT CURRENT_DATE", f"SELECT (SELECT CAST({NOW} AS date) AS current_date)"),
        ("SELECT localtimestamp", f"SELECT (SELECT CAST({NOW} AS timestamp) AS localtimestamp)"),
        ("SELECT statement_timestamp()", f"SELECT (SELECT {NOW} AS statement_timestamp)"),
        (
            'SELECT t.current_date, 1 AS current_date, t.now, "now"',
            'SELECT t.current_date, 1 AS current_date, t.now, "now"',
        ),
    ],
)
def test_the_current_time(text: str, wanted: str) -> None:
    assert over(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT array_agg(a)", "SELECT array_agg(a ORDER BY a)"),
        ("SELECT json_agg(f(a, b)) FILTER (WHERE c)", "SELECT json_agg(f(a, b) ORDER BY f(a, b)) FILTER (WHERE c)"),
        ("SELECT string_agg(a, ',')", "SELECT string_agg(a, ',' ORDER BY a)"),
        ("SELECT array_agg(a ORDER BY b DESC)", "SELECT array_agg(a ORDER BY b DESC, a ASC NULLS FIRST)"),
        ("SELECT array_agg(DISTINCT a)", "SELECT array_agg(DISTINCT a)"),
        ("SELECT array_agg(a) OVER (ORDER BY b)", "SELECT array_agg(a) OVER (ORDER BY b)"),
        ("SELECT array_agg(a) FILTER (WHERE b) OVER ()", "SELECT array_agg(a) FILTER (WHERE b) OVER ()"),
        ("SELECT array_agg(now())", f"SELECT array_agg((SELECT {NOW} AS now) ORDER BY (SELECT {NOW} AS now))"),
        ("SELECT array_agg(a), array_agg(b)", "SELECT array_agg(a ORDER BY a), array_agg(b ORDER BY b)"),
    ],
)
def test_lists_have_our_order(text: str, wanted: str) -> None:
    assert over(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "SELECT random() FROM t",
        "SELECT gen_random_uuid() FROM t",
        "SELECT current_user FROM t",
        "SELECT session_user FROM t",
        "SELECT current_schema FROM t",
        "SELECT public.upper(a) FROM t",
        "SELECT * FROM t, public.unnest(t.a)",
        "SELECT * FROM t CROSS JOIN LATERAL public.unnest(t.a) u",
        "SELECT a OPERATOR(public.+) 1 FROM t",
    ],
)
def test_what_postgres_would_answer_otherwise(text: str) -> None:
    assert unanswerable(text) is not None


@pytest.mark.parametrize("text", ["SELECT pg_catalog.upper(a) FROM t", "SELECT now(), upper(a) FROM t, unnest(t.a) u"])
def test_what_it_answers_alike(text: str) -> None:
    assert unanswerable(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT a FROM t ORDER BY a LIMIT 3", ["LIMIT"]),
        ("SELECT DISTINCT ON (a) a FROM t", ["DISTINCT ON"]),
        ("SELECT DISTINCT a FROM t", []),
        ("SELECT row_number() OVER (ORDER BY a), rank() OVER (ORDER BY a) FROM t", ["ROW_NUMBER"]),
        ("SELECT sum(a) OVER (ORDER BY b ROWS 3 PRECEDING) FROM t", ["ROWS"]),
        ("SELECT \"limit\", 'limit', mode FROM t", []),
    ],
)
def test_what_sql_leaves_open(text: str, wanted: list[str]) -> None:
    assert open_constructs(text) == wanted
