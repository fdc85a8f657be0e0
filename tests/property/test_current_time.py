"""Queries that ask for the current time, while time passes, with and without changes to what they read."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings

from kits.paths import FIXTURES
from millstream.ops import Column
from millstream.sql.parse import parse_query
from millstream.testing.assertions import assert_follows
from millstream.testing.choices import Choices
from millstream.testing.duck import oracle_text
from millstream.testing.golden import Case, read_cases
from millstream.testing.queries import make_query, queries
from millstream.testing.strategies import TABLES, Scenario, make_scenario, scenarios

EVENTS = {
    "e": (Column("id", "int"), Column("k", "int"), Column("at", "timestamp"), Column("until", "timestamp")),
    "f": (Column("k", "int"), Column("n", "int"), Column("day", "date")),
}
QUERIES = read_cases(FIXTURES / "property" / "current_time.sql")


@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=8, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(EVENTS, time_passes=True))
def test_contents_follow_the_time(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, EVENTS, scenario)


@settings(max_examples=15, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(query=queries(TABLES, reads_clock=True), scenario=scenarios(TABLES, time_passes=True))
def test_drawn_queries(query: str, scenario: Scenario) -> None:
    assert_exact(query, scenario)


def test_seeded_queries() -> None:
    for seed in range(30):
        assert_seed(seed)


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(EVENTS, time_passes=True))
def test_contents_follow_the_time_through_more_changes(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, EVENTS, scenario)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_more_seeded_queries() -> None:
    """Other cases at each run; a failure names its seed."""
    for _ in range(2000):
        seed = random.SystemRandom().randrange(2**32)
        try:
            assert_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def assert_seed(seed: int) -> None:
    choices = Choices.seeded(seed)
    query = make_query(choices, TABLES, reads_clock=True)
    assert_exact(query, make_scenario(choices, TABLES, time_passes=True))


def assert_exact(query: str, scenario: Scenario) -> None:
    """Random queries leave nothing open, so that DuckDB's answer to the text is the oracle."""
    assert_follows(query, TABLES, scenario, oracle_text(parse_query(query)))
