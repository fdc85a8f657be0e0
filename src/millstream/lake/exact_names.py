"""Names as PostgreSQL looks them up: in an attached database, letters in another case make another name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.sql.sources import Source, View


class FindsEither(Protocol):
    """Looks a name up, exactly or in any case of letters."""

    def find(self, parts: Sequence[str], *, exact: bool = False) -> Source | View | None:
        """The object of that name."""


@dataclass(frozen=True)
class Exactly:
    """The tables and views of a lake, for a text whose names PostgreSQL would fold."""

    sources: FindsEither

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The object of exactly that name."""
        return self.sources.find(parts, exact=True)
