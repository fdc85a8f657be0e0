"""How a cycle is refreshed: from what it has stored only if rows were only added."""

from __future__ import annotations

import itertools

import pytest

from millstream.errors import Code, MillstreamError
from millstream.planner import Change, InputFacts
from millstream.planner.cycle_choice import CycleFacts, Start, choose_for_cycle
from millstream.reasons import Reason
from millstream.results import Action


def chosen(*changes: Change, **facts: object) -> tuple[Action, str, Start]:
    inputs = [InputFacts(f"t{n}", change, 1, 10, "lost") for n, change in enumerate(changes)]
    found = choose_for_cycle(CycleFacts(inputs, **facts))  # type: ignore[arg-type]
    return found.choice.action, found.choice.reason.partition(":")[0], found.start


@pytest.mark.parametrize("changes", list(itertools.product(Change, repeat=2)))
def test_any_loss_starts_from_empty(changes: tuple[Change, Change]) -> None:
    expected = (Action.DIFFERENTIAL, Reason.FROM_EMPTY, Start.EMPTY)
    if Change.IMPOSSIBLE in changes:
        expected = (Action.REINITIALIZE, Reason.NO_DELTA, Start.EMPTY)
    elif set(changes) == {Change.NOTHING}:
        expected = (Action.NO_DATA, Reason.UNCHANGED, Start.STORED)
    elif set(changes) <= {Change.NOTHING, Change.APPENDED}:
        expected = (Action.DIFFERENTIAL, Reason.FIXPOINT, Start.STORED)
    assert chosen(*changes) == expected


def test_a_load_comes_first() -> None:
    assert chosen(Change.NOTHING, is_populated=False) == (Action.FULL, Reason.INITIAL, Start.EMPTY)
    assert chosen(Change.APPENDED, is_requested=True) == (Action.FULL, Reason.REQUESTED, Start.EMPTY)
    assert chosen(Change.NOTHING, reinit_reason="REINIT: x") == (Action.REINITIALIZE, Reason.REINIT, Start.EMPTY)


def test_strict_allows_deltas_from_empty_but_no_load() -> None:
    assert chosen(Change.MUTATED, strict=["a"])[0] is Action.DIFFERENTIAL
    assert chosen(Change.MUTATED, strict=["a"], is_requested=True)[0] is Action.FULL
    for facts in ({"reinit_reason": "REINIT: x"}, {}):
        with pytest.raises(MillstreamError) as caught:
            chosen(Change.IMPOSSIBLE, strict=["a"], **facts)
        assert caught.value.code is Code.FULL_REQUIRED
