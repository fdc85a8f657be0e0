"""Random queries of three to five operators, under random changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings

from millstream.ops.render import to_sql
from millstream.sql.parse import parse_query
from millstream.testing.assertions import assert_follows
from millstream.testing.choices import Choices
from millstream.testing.queries import make_query, queries
from millstream.testing.strategies import TABLES, Scenario, make_scenario, scenarios

CHUNK = 20


def assert_seed(seed: int) -> None:
    choices = Choices.seeded(seed)
    assert_exact(make_query(choices, TABLES), make_scenario(choices, TABLES))


def assert_exact(query: str, scenario: Scenario) -> None:
    """Random queries leave nothing open, so that DuckDB's answer to the text is the oracle."""
    assert_follows(query, TABLES, scenario, to_sql(parse_query(query), "duckdb"))


@settings(max_examples=20, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(query=queries(TABLES), scenario=scenarios(TABLES))
def test_drawn_queries(query: str, scenario: Scenario) -> None:
    assert_exact(query, scenario)


@pytest.mark.parametrize("first", range(0, 40, CHUNK))
def test_seeded_queries(first: int) -> None:
    """Hypothesis varies what it has drawn before; seeds do not, and so get around more."""
    for seed in range(first, first + CHUNK):
        assert_seed(seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=1000, database=None, suppress_health_check=list(HealthCheck))
@given(query=queries(TABLES), scenario=scenarios(TABLES))
def test_more_drawn_queries(query: str, scenario: Scenario) -> None:
    assert_exact(query, scenario)


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
