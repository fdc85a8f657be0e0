"""Operators as SQL, on golden files."""

from __future__ import annotations

from kits.paths import FIXTURES
from millstream.diff.difference import Difference
from millstream.ops import Relation, render
from millstream.ops.render import to_sql
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.duck import shared_connection
from millstream.testing.golden import Case, assert_golden
from millstream.testing.strategies import TABLES

CASES = FIXTURES / "render"


def relation_of(text: str) -> Relation:
    return rewrite(lower(parse_query(text), text, Tables(TABLES), DuckAnalyzer(shared_connection())).relation)


def test_queries() -> None:
    assert_golden(CASES / "queries.sql", lambda case: to_sql(render(relation_of(case.text)), pretty=True))


def test_deltas() -> None:
    def compute(case: Case) -> str:
        delta = Difference(frozenset(case.headers["changed"].split(", "))).delta(relation_of(case.text))
        assert delta is not None
        return to_sql(render(delta), pretty=True)

    assert_golden(CASES / "deltas.sql", compute)


def test_hints_are_left_out_on_request() -> None:
    delta = Difference(frozenset({"t"})).delta(relation_of("SELECT t.a FROM t JOIN u ON t.a = u.a"))
    assert delta is not None
    query = render(delta)
    assert "BROADCAST" in to_sql(query)
    assert "BROADCAST" not in to_sql(query, hints=False)
    assert "BROADCAST" not in to_sql(query, "duckdb")
    assert "BROADCAST" in to_sql(query), "printing does not change the query"


def test_rendering_does_not_change_the_relation() -> None:
    relation = relation_of("SELECT t.a + 1 AS x FROM t JOIN u ON t.a = u.a WHERE t.b > 1")
    assert to_sql(render(relation)) == to_sql(render(relation))
