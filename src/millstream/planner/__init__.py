"""Chooses the action of a refresh: a pure function of statistics."""

from millstream.planner.choice import Change, Choice, Facts, InputFacts, choose
from millstream.planner.cost import Measured

__all__ = ["Change", "Choice", "Facts", "InputFacts", "Measured", "choose"]
