"""What a refresh does, as a table of cases: facts in, verdict and reason code out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import Code, MillstreamError
from millstream.planner import Change, Facts, InputFacts, Measured, choose
from millstream.results import Action, RefreshMode

AUTO, DIFFERENTIAL, STRICT, FULL = RefreshMode

CHANGED = InputFacts("t", Change.MUTATED, changed_rows=10, rows=1_000_000)
APPENDED = InputFacts("t", Change.APPENDED, changed_rows=10, rows=1_000_000)
REPLACED = InputFacts("t", Change.REPLACED, changed_rows=2_000_000, rows=1_000_000)
UNCHANGED = InputFacts("u", Change.NOTHING, rows=5)
LOST = InputFacts("t", Change.IMPOSSIBLE, reason="the log is gone")


def facts(*inputs: InputFacts, mode: RefreshMode = AUTO, **more: object) -> Facts:
    base = Facts(mode=mode, is_populated=True, is_incremental=True, inputs=inputs or (UNCHANGED,))
    return replace(base, **more)  # type: ignore[arg-type]


def verdict(given: Facts) -> tuple[Action, str]:
    choice = choose(given)
    code, colon, words = choice.reason.partition(": ")
    assert colon, f"a reason is a code, a colon and words: {choice.reason!r}"
    assert words.strip()
    return choice.action, code


@pytest.mark.parametrize("mode", [AUTO, DIFFERENTIAL, STRICT, FULL])
def test_the_first_load_is_full_in_every_mode(mode: RefreshMode) -> None:
    assert verdict(facts(CHANGED, mode=mode, is_populated=False)) == (Action.FULL, "INITIAL")


@pytest.mark.parametrize("mode", [AUTO, DIFFERENTIAL, STRICT, FULL])
def test_nothing_changed_is_no_data_in_every_mode(mode: RefreshMode) -> None:
    assert verdict(facts(UNCHANGED, mode=mode)) == (Action.NO_DATA, "UNCHANGED")


@pytest.mark.parametrize("mode", [AUTO, DIFFERENTIAL, STRICT])
def test_a_small_change_is_a_delta(mode: RefreshMode) -> None:
    assert verdict(facts(CHANGED, UNCHANGED, mode=mode)) == (Action.DIFFERENTIAL, "CHANGED")


def test_appends_to_what_only_grows_are_appended() -> None:
    assert verdict(facts(APPENDED, is_monotone=True)) == (Action.APPEND_ONLY, "APPENDED")
    assert verdict(facts(APPENDED, UNCHANGED, is_monotone=True)) == (Action.APPEND_ONLY, "APPENDED")
    assert verdict(facts(APPENDED, is_monotone=False)) == (Action.DIFFERENTIAL, "CHANGED")
    other = replace(CHANGED, name="u")
    assert verdict(facts(APPENDED, other, is_monotone=True)) == (Action.DIFFERENTIAL, "CHANGED")


def test_mode_full() -> None:
    assert verdict(facts(CHANGED, mode=FULL)) == (Action.FULL, "MODE_FULL")
    assert verdict(facts(UNCHANGED, mode=FULL, is_explicit=True)) == (Action.FULL, "REQUESTED")


def test_a_query_without_delta() -> None:
    given = facts(CHANGED, is_incremental=False, not_incremental="UNSUPPORTED_SQL: LIMIT")
    assert verdict(given) == (Action.FULL, "NOT_INCREMENTAL")
    assert "LIMIT" in choose(given).reason


@pytest.mark.parametrize("mode", [FULL, AUTO])
def test_a_lost_history_does_not_matter_to_what_is_recomputed_anyway(mode: RefreshMode) -> None:
    assert verdict(facts(LOST, mode=mode, is_incremental=False, not_incremental="LIMIT"))[0] is Action.FULL


@pytest.mark.parametrize("mode", [AUTO, DIFFERENTIAL])
def test_a_lost_history_starts_over_and_says_which(mode: RefreshMode) -> None:
    given = facts(UNCHANGED, LOST, mode=mode)
    assert verdict(given) == (Action.REINITIALIZE, "NO_DELTA")
    assert "t: the log is gone" in choose(given).reason


def test_a_mark_starts_over_before_anything_else_is_looked_at() -> None:
    assert verdict(facts(UNCHANGED, reinit_reason="QUERY_ALTERED: by the user")) == (
        Action.REINITIALIZE,
        "QUERY_ALTERED",
    )


def test_what_follows_the_clock_is_never_without_data() -> None:
    assert verdict(facts(UNCHANGED, follows_time=True, is_incremental=False)) == (Action.FULL, "CURRENT_TIME")
    assert verdict(facts(UNCHANGED, follows_time=True, mode=RefreshMode.FULL)) == (Action.FULL, "CURRENT_TIME")
    for mode in (AUTO, DIFFERENTIAL, STRICT):
        assert verdict(facts(UNCHANGED, follows_time=True, mode=mode)) == (Action.DIFFERENTIAL, "AGED")
        assert verdict(facts(CHANGED, follows_time=True, mode=mode)) == (Action.DIFFERENTIAL, "CHANGED")


def test_what_follows_the_clock_may_lose_rows_where_others_are_added() -> None:
    given = facts(APPENDED, follows_time=True, is_monotone=True)
    assert verdict(given) == (Action.DIFFERENTIAL, "CHANGED")


@pytest.mark.parametrize(
    "given",
    [
        facts(LOST, mode=STRICT),
        facts(CHANGED, mode=STRICT, reinit_reason="QUERY_ALTERED: by the user"),
        facts(CHANGED, mode=STRICT, is_incremental=False),
        facts(UNCHANGED, mode=STRICT, follows_time=True, is_incremental=False),
    ],
)
def test_strict_fails_instead_of_recomputing(given: Facts) -> None:
    with pytest.raises(MillstreamError) as caught:
        choose(given)
    assert caught.value.code is Code.FULL_REQUIRED
    assert caught.value.hint


def test_strict_takes_what_is_a_delta_however_large() -> None:
    assert verdict(facts(REPLACED, mode=STRICT, max_change_ratio=1.0)) == (Action.DIFFERENTIAL, "CHANGED")


class TestByCost:
    """Only AUTO weighs."""

    HALF = InputFacts("t", Change.MUTATED, changed_rows=500_000, rows=1_000_000)

    def test_by_ratio_before_there_is_a_history(self) -> None:
        assert verdict(facts(self.HALF)) == (Action.FULL, "RATIO")
        assert verdict(facts(self.HALF, max_change_ratio=0.6)) == (Action.DIFFERENTIAL, "CHANGED")
        assert verdict(facts(self.HALF, mode=DIFFERENTIAL)) == (Action.DIFFERENTIAL, "CHANGED")

    def test_tiny_tables_are_not_judged_by_ratio(self) -> None:
        assert verdict(facts(InputFacts("t", Change.MUTATED, 3, 3))) == (Action.DIFFERENTIAL, "CHANGED")

    def test_ratio_zero_never_recomputes_and_one_always_does(self) -> None:
        slow = [Measured(True, 0, 10, 1.0), Measured(False, 10, 10, 10_000.0)]
        assert verdict(facts(self.HALF, max_change_ratio=0.0, history=slow)) == (Action.DIFFERENTIAL, "CHANGED")
        assert verdict(facts(CHANGED, max_change_ratio=1.0)) == (Action.FULL, "RATIO_ALWAYS")
        assert verdict(facts(UNCHANGED, max_change_ratio=1.0)) == (Action.NO_DATA, "UNCHANGED")

    def test_a_history_decides_against_the_ratio(self) -> None:
        cheap_delta = [Measured(True, 0, 1_000_000, 60_000.0), Measured(False, 500_000, 1_000_000, 4_000.0)]
        assert verdict(facts(self.HALF, history=cheap_delta)) == (Action.DIFFERENTIAL, "CHANGED")
        cheap_full = [Measured(True, 0, 1_000_000, 300.0), *[Measured(False, 10, 1_000_000, 900.0)] * 3]
        assert verdict(facts(CHANGED, history=cheap_full)) == (Action.FULL, "CHEAPER")

    def test_a_cold_start_decides_nothing(self) -> None:
        cold = [Measured(False, 10, 1_000_000, 900.0), Measured(True, 0, 1_000_000, 300.0)]
        assert verdict(facts(CHANGED, history=cold)) == (Action.DIFFERENTIAL, "CHANGED")

    def test_full_must_be_clearly_better(self) -> None:
        near = [Measured(True, 0, 1_000_000, 300.0), *[Measured(False, 10, 1_000_000, 450.0)] * 3]
        assert verdict(facts(CHANGED, history=near)) == (Action.DIFFERENTIAL, "CHANGED")

    def test_a_delta_is_tried_again_after_a_while(self) -> None:
        slow = [*[Measured(True, 10, 1_000_000, 300.0)] * 9, *[Measured(False, 10, 1_000_000, 900.0)] * 3]
        assert verdict(facts(CHANGED, history=slow)) == (Action.FULL, "CHEAPER")
        assert verdict(facts(CHANGED, history=[slow[0]] * 4 + slow)) == (Action.DIFFERENTIAL, "CHANGED")

    def test_far_beyond_experience_a_row_has_a_typical_cost(self) -> None:
        deltas = [Measured(False, 10, 1_000_000, 200.0)] * 3
        assert verdict(facts(self.HALF, history=[Measured(True, 0, 1_000_000, 3_000.0), *deltas]))[1] == "CHEAPER"
        assert verdict(facts(self.HALF, history=[Measured(True, 0, 1_000_000, 9_000.0), *deltas]))[1] == "CHANGED"

    def test_half_a_history_is_none(self) -> None:
        only_full = [Measured(True, 0, 1_000_000, 1.0)]
        assert verdict(facts(CHANGED, history=only_full)) == (Action.DIFFERENTIAL, "CHANGED")
