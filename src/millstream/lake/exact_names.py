"""Looks up names as PostgreSQL does: names in an attached database are case-sensitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.sql.sources import Source, View


class FindsEither(Protocol):
    """Looks up a name, case-sensitively or not."""

    def find(self, parts: Sequence[str], *, exact: bool = False) -> Source | View | None:
        """The object of that name."""


@dataclass(frozen=True)
class Exactly:
    """The tables and views of a lake, for a text whose names were folded as in PostgreSQL."""

    sources: FindsEither

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The object of exactly that name."""
        return self.sources.find(parts, exact=True)
