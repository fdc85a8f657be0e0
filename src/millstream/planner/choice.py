"""Chooses among NO_DATA, APPEND_ONLY, DIFFERENTIAL, FULL and REINITIALIZE. Pure; every choice has a reason code.

The reason recorded with a refresh is the code, a colon, and the facts behind it in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from millstream.errors import Code, MillstreamError
from millstream.planner.cost import Measured, predict_differential_ms, predict_full_ms
from millstream.reasons import Reason
from millstream.results import Action, RefreshMode

# A delta of fewer rows costs less than the fixed cost of any recomputation, however small the table.
SMALL_CHANGE = 1_000
# The first small deltas of a table are slow for reasons other than their size, mainly a cold JVM.
ENOUGH = 3
# Deltas are tried again after this many refreshes without one: the last ones may have been slow by chance.
MEMORY = 12
# FULL is chosen only if it is better by more than the prediction error.
CLEARLY, CLEARLY_MS = 1.2, 100.0


class Change(StrEnum):
    """What happened to an input since the last refresh."""

    NOTHING = "NOTHING"
    APPENDED = "APPENDED"
    MUTATED = "MUTATED"
    REPLACED = "REPLACED"
    IMPOSSIBLE = "IMPOSSIBLE"
    """Its changes are not available: history lost, table recreated, columns changed."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """An input: what happened to it, how many rows changed, how many it has, and why if its changes are unavailable."""

    name: str
    change: Change
    changed_rows: int = 0
    rows: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a choice depends on."""

    mode: RefreshMode
    is_populated: bool
    is_incremental: bool
    """Whether the query can be maintained by deltas at all; `not_incremental` says why not."""
    inputs: Sequence[InputFacts]
    name: str = ""
    """The stream table, for messages."""
    is_explicit: bool = False
    """Whether the caller asked for `mode` for this refresh only."""
    is_monotone: bool = False
    """Whether inserts can only add rows to the result."""
    follows_time: bool = False
    """Whether the query uses the current time, so that its result changes even if its sources do not."""
    reinit_reason: str | None = None
    not_incremental: str = ""
    max_change_ratio: float = 0.15
    history: Sequence[Measured] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Choice:
    """The action and its reason."""

    action: Action
    reason: str


def choose(facts: Facts) -> Choice:
    """Choose what a refresh does.

    Raises:
        MillstreamError: FULL_REQUIRED if the mode is DIFFERENTIAL STRICT and no delta is possible.
    """
    if not facts.is_populated:
        return Choice(Action.FULL, f"{Reason.INITIAL}: the first load")
    if facts.mode is RefreshMode.FULL and facts.is_explicit:
        return Choice(Action.FULL, f"{Reason.REQUESTED}: a full refresh was asked for")
    if facts.reinit_reason:
        return _recomputed(facts, Action.REINITIALIZE, facts.reinit_reason)
    if facts.follows_time and (facts.mode is RefreshMode.FULL or not facts.is_incremental):
        return _recomputed(facts, Action.FULL, f"{Reason.CURRENT_TIME}: the query depends on the current time")
    changed = [i for i in facts.inputs if i.change is not Change.NOTHING]
    if not changed and not facts.follows_time:
        return Choice(Action.NO_DATA, f"{Reason.UNCHANGED}: no source has changed")
    if facts.mode is RefreshMode.FULL:
        return Choice(Action.FULL, f"{Reason.MODE_FULL}: the refresh mode is FULL")
    if not facts.is_incremental:
        return _recomputed(facts, Action.FULL, f"{Reason.NOT_INCREMENTAL}: {facts.not_incremental}")
    impossible = [i for i in changed if i.change is Change.IMPOSSIBLE]
    if impossible:
        return _recomputed(
            facts, Action.REINITIALIZE, f"{Reason.NO_DELTA}: {impossible[0].name}: {impossible[0].reason}"
        )
    if facts.mode is RefreshMode.AUTO and (choice := _by_cost(facts, changed)) is not None:
        return choice
    rows = sum(i.changed_rows for i in changed)
    if facts.follows_time:
        if not changed:
            return Choice(Action.DIFFERENTIAL, f"{Reason.AGED}: only the time has changed")
        return Choice(Action.DIFFERENTIAL, f"{Reason.CHANGED}: about {rows} rows, and the time")
    if facts.is_monotone and all(i.change is Change.APPENDED for i in changed):
        return Choice(Action.APPEND_ONLY, f"{Reason.APPENDED}: about {rows} rows, nothing updated or deleted")
    return Choice(Action.DIFFERENTIAL, f"{Reason.CHANGED}: about {rows} rows")


def full_required(name: str, reason: str) -> MillstreamError:
    """The error for a DIFFERENTIAL STRICT table that would have to be recomputed; the hint shows how to allow it."""
    return MillstreamError(
        Code.FULL_REQUIRED,
        f"no delta of {name} is possible: {reason}",
        hint=f"REFRESH STREAM TABLE {name} FULL recomputes it once; "
        f"ALTER STREAM TABLE {name} SET REFRESH MODE DIFFERENTIAL allows that from now on",
    )


def _recomputed(facts: Facts, action: Action, reason: str) -> Choice:
    if facts.mode is RefreshMode.DIFFERENTIAL_STRICT:
        raise full_required(facts.name, reason)
    return Choice(action, reason)


def _by_cost(facts: Facts, changed: Sequence[InputFacts]) -> Choice | None:
    """FULL if it is cheaper, judged by the table's own history, or without one by the share of changed rows."""
    limit = facts.max_change_ratio
    if limit == 0:
        return None
    if limit == 1:
        return Choice(Action.FULL, f"{Reason.RATIO_ALWAYS}: differential_max_change_ratio is 1")
    rows = sum(i.changed_rows for i in changed)
    total = sum(i.rows or 0 for i in facts.inputs)
    known = [m for m in facts.history[:MEMORY] if not m.is_full]
    full = predict_full_ms(facts.history, total)
    differential = predict_differential_ms(known, rows)
    if full is not None and differential is not None:
        if rows < SMALL_CHANGE and len(known) < ENOUGH:
            return None
        if differential > full * CLEARLY + CLEARLY_MS:
            return Choice(
                Action.FULL,
                f"{Reason.CHEAPER}: about {full:.0f} ms against {differential:.0f} ms for {rows} changed rows",
            )
        return None
    for item in changed:
        if item.rows and item.changed_rows >= SMALL_CHANGE and item.changed_rows / item.rows > limit:
            share = item.changed_rows / item.rows
            return Choice(Action.FULL, f"{Reason.RATIO}: {share:.0%} of {item.name} changed, more than {limit:.0%}")
    return None
