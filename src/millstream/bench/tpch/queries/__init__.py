"""The 22 queries with the parameters of the standard's validation run; each is a file beside this one."""

from __future__ import annotations

from importlib.resources import files

NUMBERS = tuple(range(1, 23))
_FRACTION = 0.0001


def query(number: int, scale: float = 1) -> str:
    """The text of a query. One depends on the scale: q11 asks for parts worth more than a fraction of all."""
    text = (files(__package__) / f"q{number:02d}.sql").read_text()
    return text.format(fraction=f"{_FRACTION / scale:.10f}")
