"""The source of choices for random cases: hypothesis, which can shrink a failing case, or a seed, which is fast."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices:
    """Choices made from whole numbers; smaller numbers mean simpler cases."""

    def __init__(self, number: Callable[[int, int], int]) -> None:
        self.number = number
        """A number between two others, both included."""

    @classmethod
    def drawn(cls, draw: st.DrawFn) -> Choices:
        """Choices that hypothesis makes."""
        return cls(lambda least, most: draw(st.integers(least, most)))

    @classmethod
    def seeded(cls, seed: int) -> Choices:
        """Choices that are the same for the same seed."""
        return cls(random.Random(seed).randint)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first are the simplest."""
        return options[self.number(0, len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.number(0, one_in - 1) == one_in - 1

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Some of the options in any order, at least one."""
        left, picked = list(options), []
        for _ in range(self.number(1, min(most, len(options)))):
            picked.append(left.pop(self.number(0, len(left) - 1)))
        return picked
