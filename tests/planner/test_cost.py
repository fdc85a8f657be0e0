"""Predictions from a table's own history."""

from __future__ import annotations

import pytest

from millstream.planner.cost import Measured, predict_differential_ms, predict_full_ms


def full(source_rows: int, ms: float) -> Measured:
    return Measured(True, 0, source_rows, ms)


def delta(changed: int, ms: float) -> Measured:
    return Measured(False, changed, 1_000_000, ms)


def test_without_a_history_there_is_no_prediction() -> None:
    assert predict_full_ms([], 10) is None
    assert predict_differential_ms([], 10) is None
    assert predict_full_ms([delta(1, 5.0)], 10) is None
    assert predict_differential_ms([full(10, 5.0)], 10) is None


def test_full_grows_with_the_sources() -> None:
    assert predict_full_ms([full(1_000, 100.0)], 1_000) == pytest.approx(100.0)
    grown = predict_full_ms([full(1_000, 100.0)], 4_000)
    assert grown is not None
    assert grown > 200.0


def test_one_slow_outlier_does_not_decide() -> None:
    history = [full(1_000, 100.0), full(1_000, 9_000.0), full(1_000, 110.0)]
    assert predict_full_ms(history, 1_000) == pytest.approx(110.0)


def test_an_empty_source_is_no_division() -> None:
    assert predict_full_ms([full(0, 100.0)], 10) is not None
    assert predict_full_ms([full(10, 100.0)], 0) is not None
    assert predict_differential_ms([delta(0, 100.0)], 10) is not None


@pytest.mark.parametrize(
    "history",
    [
        [delta(100, 400.0)],
        [delta(100, 400.0), delta(10_000, 900.0)],
        [delta(100, 900.0), delta(10_000, 400.0)],  # noise: more rows took less time
    ],
)
def test_a_delta_never_gets_cheaper_with_its_size(history: list[Measured]) -> None:
    predicted = [predict_differential_ms(history, rows) for rows in (0, 1, 100, 5_000, 1_000_000)]
    assert all(p is not None and p > 0 for p in predicted)
    assert predicted == sorted(predicted)  # type: ignore[type-var]


def test_small_deltas_do_not_tell_what_a_row_costs() -> None:
    """A million groups, as measured: 274 ms for 1,000 changes, then 1,450 for 100,000, against 2,904 for FULL."""
    predicted = predict_differential_ms([delta(1_000, 274.0), delta(1_000, 236.0), delta(1_000, 310.0)], 100_000)
    assert predicted == pytest.approx(274.0 + 990.0)
    assert predict_differential_ms([delta(100_000, 1_450.0)], 1_000_000) == pytest.approx(250.0 + 12_000.0)


def test_the_fixed_part_of_a_delta_stays() -> None:
    history = [delta(10, 300.0), delta(1_000, 400.0), delta(100_000, 10_300.0)]
    small, large = predict_differential_ms(history, 1), predict_differential_ms(history, 200_000)
    assert small is not None
    assert large is not None
    assert small >= 150.0
    assert large > 15_000.0
