"""Backoff: how long a failed refresh waits, and which failures count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.scheduler.backoff import NO_BACKOFF, Backoff, after_failure, delay_seconds
from millstream.scheduler.failures import FailureClass

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FRACTIONS = st.floats(0, 1, exclude_max=True)


def test_delays_double_up_to_a_minute() -> None:
    assert [delay_seconds(n, 0.5) for n in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert delay_seconds(10**6, 0.5) == 60


def test_jitter_is_a_quarter_to_either_side() -> None:
    assert delay_seconds(3, 0.0) == 3
    assert delay_seconds(3, 1.0) == 5


@given(st.integers(1, 2000), FRACTIONS)
def test_delays_stay_in_their_range(attempts: int, fraction: float) -> None:
    assert 0.75 <= delay_seconds(attempts, fraction) <= 75


def test_five_retries_of_a_transient_failure_before_it_counts() -> None:
    backoff, counted = NO_BACKOFF, []
    for _ in range(12):
        failure = after_failure(backoff, FailureClass.TRANSIENT, NOW, 0.5)
        backoff = failure.backoff
        counted.append(failure.counts)
    assert counted == ([False] * 5 + [True]) * 2
    assert backoff == Backoff(12, NOW + timedelta(seconds=60))


@pytest.mark.parametrize("failure_class", [FailureClass.SOURCE, FailureClass.DATA])
def test_other_failures_count_at_once_and_wait_as_well(failure_class: FailureClass) -> None:
    first = after_failure(NO_BACKOFF, failure_class, NOW, 0.5)
    assert first.counts
    assert first.backoff == Backoff(1, NOW + timedelta(seconds=1))
    assert after_failure(first.backoff, failure_class, NOW, 0.5).backoff.attempts == 2


def test_a_table_waits_until_its_retry() -> None:
    backoff = Backoff(1, NOW + timedelta(seconds=1))
    assert backoff.wait_seconds(NOW) == 1
    assert backoff.wait_seconds(NOW + timedelta(seconds=1)) == 0
    assert NO_BACKOFF.wait_seconds(NOW) == 0


def test_a_clock_that_was_set_back_does_not_prolong_the_wait() -> None:
    backoff = Backoff(1, NOW + timedelta(seconds=1))
    assert backoff.wait_seconds(NOW - timedelta(hours=1)) == 0
