"""Long tests by turns: a run takes as many of them as its budget allows, and each run begins at another place.

`--turn N --budget SECONDS` begins at a place that N gives. The places of consecutive numbers are spread evenly over all
tests (multiples of the golden ratio), so that every test runs regularly. A test that has begun
is finished; the others are listed as left to other turns.
"""

from __future__ import annotations

import time

import pytest

_GOLDEN = 0.6180339887498949


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turns")
    group.addoption("--turn", type=int, help="begin at the place of this turn, and go around")
    group.addoption("--budget", type=float, default=float("inf"), help="seconds after which no further test begins")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("turn") is not None:
        config.pluginmanager.register(Turn(config.getoption("turn"), config.getoption("budget")), "turn")


class Turn:
    """The tests of one turn."""

    def __init__(self, number: int, budget: float) -> None:
        self._number = number
        self._budget = budget
        self._deadline: float | None = None
        self._left: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        first = start_of(self._number, len(items))
        items[:] = [*items[first:], *items[:first]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        self._deadline = self._deadline or time.monotonic() + self._budget
        if time.monotonic() < self._deadline:
            return None
        self._left.append(item.nodeid)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"turn {self._number}: {len(self._left)} tests are left to other turns")


def start_of(turn: int, count: int) -> int:
    """The place of a turn among so many tests."""
    return int(turn * _GOLDEN % 1 * count)
