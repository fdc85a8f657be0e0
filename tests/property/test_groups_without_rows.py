"""The postgres dialect over inputs that are empty, or become so: the results that exist without rows appear and stay.

DuckDB has PostgreSQL's rule, so that it is the oracle with the text as it was written.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from kits.paths import FIXTURES
from millstream.sql.postgres import translate
from millstream.testing.analyzer import DuckAnalyzer
from millstream.testing.analyzer import Tables as Sources
from millstream.testing.assertions import assert_follows
from millstream.testing.duck import shared_connection
from millstream.testing.golden import read_cases
from millstream.testing.strategies import TABLES, Scenario, Step, scenarios

FIXTURE = FIXTURES / "property" / "postgres_groups.sql"
QUERIES = {case.title: case.text for case in read_cases(FIXTURE)}

ROWS = [((1, 2, "x"), 2), ((1, None, None), 1), ((2, 1, "y"), 1), ((None, 3, "x"), 1)]
OTHERS = [((1, 3, None), 1), ((2, None, None), 1)]
GONE = [(row, -weight) for row, weight in ROWS]

EMPTIED = Scenario(
    {},
    [
        Step({"t": ROWS[:1]}, refreshes=True),
        Step({"t": [(ROWS[0][0], -2)]}, refreshes=True),
        Step({"t": ROWS, "u": OTHERS}, refreshes=True),
        Step({"t": GONE}, refreshes=True),
        Step({"t": [*ROWS, *GONE]}, refreshes=True),
        Step({"t": ROWS[1:], "u": [(row, -weight) for row, weight in OTHERS]}, refreshes=True),
        Step({"t": GONE[1:], "u": OTHERS}, refreshes=True),
    ],
)
FILLED = Scenario({"t": ROWS, "u": OTHERS}, [Step({"t": GONE}, refreshes=True), Step({"t": ROWS}, refreshes=True)])


def _follows(query: str, scenario: Scenario) -> None:
    spark = translate(query, Sources(TABLES), DuckAnalyzer(shared_connection())).spark_text
    assert_follows(spark, TABLES, scenario, oracle=query)


@pytest.mark.parametrize("title", list(QUERIES))
@pytest.mark.parametrize("scenario", [EMPTIED, FILLED], ids=["empty at first", "filled at first"])
def test_groups_of_no_rows_are_there(title: str, scenario: Scenario) -> None:
    _follows(QUERIES[title], scenario)


@pytest.mark.parametrize("title", list(QUERIES))
@settings(max_examples=3, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_groups_follow_random_changes(title: str, scenario: Scenario) -> None:
    _follows(QUERIES[title], scenario)


@pytest.mark.long
@pytest.mark.parametrize("title", list(QUERIES))
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_groups_follow_more_random_changes(title: str, scenario: Scenario) -> None:
    _follows(QUERIES[title], scenario)
