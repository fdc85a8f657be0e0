"""One measurement of the daemon's benchmark: what it measures, how it is shown, and what it has to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.bench.page import TableOf

if TYPE_CHECKING:
    from millstream.service import Millstream
    from millstream.testing.postgres_server import Server

Samples = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """What every section works with.

    Args:
        opened: opens a lake in a directory; each section has its own.
        directory: for its lake.
        is_quick: measure less, to see that everything works.
    """

    server: Server
    opened: Callable[[Path], Millstream]
    directory: Path
    is_quick: bool
    announce: Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """A part of the benchmark.

    Args:
        name: its key in the raw data.
        measure: gives the samples, as dataclasses.
        table: how they are shown.
        verdicts: a line per target.
    """

    name: str
    measure: Callable[[Bench], Sequence[Any]]
    table: Callable[[Samples], TableOf]
    verdicts: Callable[[Samples], list[str]]


def verdict(is_reached: bool, text: str) -> str:
    """The line of a target."""
    return f"{'reached' if is_reached else 'MISSED '}  {text}"
