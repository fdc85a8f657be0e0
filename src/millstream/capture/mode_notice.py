"""Notifies the user once when a tick has changed the capture mode of a database."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.catalog.attached import AttachedDatabase, CaptureMode


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A sentence about a change of the capture mode; a setback is a change that the user did not request."""

    sentence: str
    is_setback: bool = False


def mode_change_between(before: AttachedDatabase, after: AttachedDatabase) -> ModeChange | None:
    """What to report to the user about the change between two states of a database."""
    name, why = after.name, after.hindrance
    if after.mode is not CaptureMode.TRIGGER:
        is_there = after.mode is CaptureMode.WAL and before.mode is not CaptureMode.WAL
        return ModeChange(f"{name} is captured from its WAL from now on") if is_there else None
    if before.mode is CaptureMode.WAL:
        sentence = f"{name} is captured by triggers again"
        return ModeChange(f"{sentence}: {why}", is_setback=True) if why else ModeChange(sentence)
    if why is None or (before.mode is CaptureMode.TRIGGER and why == before.hindrance):
        return None
    return ModeChange(f"{name} stays on triggers: {why}", is_setback=before.mode is CaptureMode.TRANSITIONING)
