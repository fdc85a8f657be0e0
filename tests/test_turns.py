"""Long tests by turns: every test has its turn, and a turn stays within its budget."""

from __future__ import annotations

import pytest

from kits.turns import start_of

pytest_plugins = ["pytester"]
TESTS = """
import time, pytest
@pytest.mark.parametrize("n", range(10))
def test_n(n):
    time.sleep(0.2)
"""


def test_turns_come_to_every_test() -> None:
    """40 tests, of which a turn takes one in eight."""
    taken = {(start_of(turn, 40) + place) % 40 for turn in range(100, 113) for place in range(5)}
    assert taken == set(range(40))


def test_a_turn_without_tests() -> None:
    assert start_of(7, 0) == 0


@pytest.mark.parametrize(("turn", "first"), [(0, 0), (1, 6), (2, 2)])
def test_a_turn_begins_at_its_place_and_stays_within_its_budget(
    pytester: pytest.Pytester, turn: int, first: int
) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess(
        "-p", "kits.turns", "-p", "no:randomly", "-p", "no:cacheprovider", "-v", "--turn", str(turn), "--budget", "0.5"
    )
    passed = result.parseoutcomes()["passed"]
    assert 1 <= passed <= 3
    result.stdout.fnmatch_lines(
        [f"*test_n?{first}? PASSED*", f"turn {turn}: {10 - passed} tests are left to other turns"]
    )
