"""A member of a cycle as an input of the others: with the rows that it will have when the refresh is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream import naming
from millstream.catalog.models import StreamTable
from millstream.engine.storage import DeltaStore
from millstream.naming import quote
from millstream.refresh.inputs import BoundInput, stream_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Staged:
    """The result of a cycle's rounds for one member.

    Args:
        rows: all rows that it will have; `count` is about how many.
        change: how they differ from what it has stored, as a Z-set; None if that is not needed or there is nothing.
    """

    rows: DataFrame
    count: int
    change: DataFrame | None = None


@dataclass(frozen=True, kw_only=True)
class StagedInput(BoundInput):
    """The staged rows of a member. Its versions only say whether it has changed: the new one does not exist yet."""

    staged: Staged

    def contents(self, store: DeltaStore, columns: Sequence[str]) -> DataFrame:
        return self.staged.rows.select(*map(quote, columns))

    def changes(self, store: DeltaStore) -> DataFrame:
        assert self.staged.change is not None, "a member that has not changed has no changes"
        return self.staged.change.select(*map(quote, (*self.columns, naming.WEIGHT)))

    def num_rows(self, store: DeltaStore) -> int | None:
        return self.staged.count


def staged_input(member: StreamTable, columns: tuple[str, ...], staged: Staged) -> StagedInput:
    """A member as an input that reads some of its columns."""
    old = member.public_stage.version
    new = (old or 0) + (staged.change is not None)
    return StagedInput(stream_input(member), columns, old, new, staged=staged)
