"""What a user is notified of once, when a tick has changed how a database is captured."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.catalog.attached import AttachedDatabase, CaptureMode


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the capture mode, in a sentence; a setback is one that nobody has asked for."""

    sentence: str
    is_setback: bool = False


def move_between(before: AttachedDatabase, after: AttachedDatabase) -> Move | None:
    """What to notify the user of, once a database has come from one state to another."""
    name, why = after.name, after.hindrance
    if after.mode is not CaptureMode.TRIGGER:
        is_there = after.mode is CaptureMode.WAL and before.mode is not CaptureMode.WAL
        return Move(f"{name} is captured from its WAL from now on") if is_there else None
    if before.mode is CaptureMode.WAL:
        sentence = f"{name} is captured by triggers again"
        return Move(f"{sentence}: {why}", is_setback=True) if why else Move(sentence)
    if why is None or (before.mode is CaptureMode.TRIGGER and why == before.hindrance):
        return None
    return Move(f"{name} stays on triggers: {why}", is_setback=before.mode is CaptureMode.TRANSITIONING)
