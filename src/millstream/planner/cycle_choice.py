"""Chooses how a cycle of stream tables is refreshed: all members in the same way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from millstream.planner.choice import Change, Choice, InputFacts, full_required
from millstream.reasons import Reason
from millstream.results import Action


class Start(StrEnum):
    """The rows from which the rounds of a cycle start."""

    STORED = "STORED"
    """What the members have stored: enough if rows were only added."""
    EMPTY = "EMPTY"
    """None: rows of a cycle may support each other, and would stay after the last row that they followed from."""


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """Everything that the choice depends on.

    Args:
        inputs: what the members read outside of the cycle.
        is_populated: whether all members have contents.
        is_requested: whether FULL was requested for a member.
        reinit_reason: why the stored rows of a member are no base for a delta.
        strict: the members that are DIFFERENTIAL STRICT.
    """

    inputs: Sequence[InputFacts]
    is_populated: bool = True
    is_requested: bool = False
    reinit_reason: str | None = None
    strict: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CycleChoice:
    """The action of all members, its reason, and where the rounds start."""

    choice: Choice
    start: Start


def choose_for_cycle(facts: CycleFacts) -> CycleChoice:
    """Choose what a refresh of a cycle does.

    Raises:
        MillstreamError: FULL_REQUIRED if a member is DIFFERENTIAL STRICT and no delta is possible.
    """
    if not facts.is_populated:
        return _from_empty(Action.FULL, f"{Reason.INITIAL}: the first load")
    if facts.is_requested:
        return _from_empty(Action.FULL, f"{Reason.REQUESTED}: a full refresh was asked for")
    if facts.reinit_reason is not None:
        return _reloaded(facts, facts.reinit_reason)
    changed = [i for i in facts.inputs if i.change is not Change.NOTHING]
    if not changed:
        return CycleChoice(Choice(Action.NO_DATA, f"{Reason.UNCHANGED}: no source has changed"), Start.STORED)
    if impossible := [i for i in changed if i.change is Change.IMPOSSIBLE]:
        return _reloaded(facts, f"{Reason.NO_DELTA}: {impossible[0].name}: {impossible[0].reason}")
    if losing := [i.name for i in changed if i.change is not Change.APPENDED]:
        return _from_empty(Action.DIFFERENTIAL, f"{Reason.FROM_EMPTY}: {min(losing)} lost rows")
    rows = sum(i.changed_rows for i in changed)
    reason = f"{Reason.FIXPOINT}: about {rows} rows, nothing updated or deleted"
    return CycleChoice(Choice(Action.DIFFERENTIAL, reason), Start.STORED)


def _reloaded(facts: CycleFacts, reason: str) -> CycleChoice:
    if facts.strict:
        raise full_required(min(facts.strict), reason)
    return _from_empty(Action.REINITIALIZE, reason)


def _from_empty(action: Action, reason: str) -> CycleChoice:
    return CycleChoice(Choice(action, reason), Start.EMPTY)
