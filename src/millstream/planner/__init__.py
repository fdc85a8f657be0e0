"""Chooses what a refresh does: a pure function of statistics."""

from millstream.planner.choice import Choice, Facts, InputFacts, Measured, choose

__all__ = ["Choice", "Facts", "InputFacts", "Measured", "choose"]
