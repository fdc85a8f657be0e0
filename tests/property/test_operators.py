"""Each operator alone, and in the shapes that are known to be hard, under random changes to its inputs.

The queries are those of fixtures/property/operators.sql.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from millstream.testing.assertions import assert_follows
from millstream.testing.golden import Case, read_cases
from millstream.testing.strategies import TABLES, Scenario, scenarios

QUERIES = read_cases(Path(__file__).parents[1] / "fixtures" / "property" / "operators.sql")


@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=10, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_contents_follow_the_query(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario, query.headers.get("oracle"))


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_contents_follow_the_query_through_more_changes(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario, query.headers.get("oracle"))
