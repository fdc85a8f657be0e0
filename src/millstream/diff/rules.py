"""All delta rules, by importing the modules that register them."""

from millstream.diff import anti_join, inner_join, linear, outer_join, semi_join
from millstream.diff.base import RULES, STRATEGIES

__all__ = ["RULES", "STRATEGIES", "anti_join", "inner_join", "linear", "outer_join", "semi_join"]
