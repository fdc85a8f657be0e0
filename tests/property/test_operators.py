"""Each operator alone, and in the shapes that are known to be hard, under random changes to its inputs.

The queries are those of two files in fixtures/property; recursions have a test of their own.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kits.delta_sql import FOLDER
from kits.paths import FIXTURES
from millstream.ops.render import to_sql
from millstream.sql.parse import parse_query
from millstream.testing.assertions import assert_follows
from millstream.testing.golden import Case, read_cases
from millstream.testing.strategies import TABLES, Scenario, scenarios

# what a query has in place of an oracle whose ORDER BYs leave nothing open: the text itself is one
TEXT = "the text"

CASES = FIXTURES / "property"
FILES = [CASES / "operators.sql", CASES / "aggregates.sql", *sorted(FOLDER.iterdir())]
QUERIES = [case for path in FILES for case in read_cases(path)]


def _oracle(query: Case) -> str | None:
    oracle = query.headers.get("oracle")
    return to_sql(parse_query(query.text), "duckdb") if oracle == TEXT else oracle


@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=3, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_contents_follow_the_query(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario, _oracle(query))


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_contents_follow_the_query_through_more_changes(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario, _oracle(query))
