"""A Delta table as an input: its contents at a version, and its changes between two.

Users' tables and stream tables are read in the same way; a stream table's stored columns get the names that its view
shows, and the rows that its HAVING hides are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from millstream import naming
from millstream.engine.storage import DeltaStore, RangeSummary
from millstream.naming import quote


@dataclass(frozen=True)
class DeltaInput:
    """An input of a stage.

    Args:
        id: its name in frontiers and in the stage's steps.
        path: the table's path.
        stored: the stored name of each column that has another name in the table.
        hides_rows: whether rows whose VISIBLE is false are left out.
        table_id: the Delta table's id when it was first read: a different id under the same path is another table.
    """

    id: str
    path: str
    stored: Mapping[str, str] = field(default_factory=dict)
    hides_rows: bool = False
    table_id: str | None = None

    def classify(self, store: DeltaStore, after: int, upto: int, columns: Sequence[str]) -> RangeSummary:
        """Summarise what happened to it, from the log alone."""
        return store.classify(self.path, after, upto, self._stored(columns), self.table_id)

    def contents(self, store: DeltaStore, version: int, columns: Sequence[str]) -> DataFrame:
        """Its rows at a version."""
        return self._shown(store.read(self.path, version, self._stored(columns)), columns, ())

    def columns(self, store: DeltaStore, version: int) -> set[str]:
        """The names its columns have at a version, in lower case."""
        if self.stored:
            return {name.lower() for name in self.stored}
        return {name.lower() for name, _, _ in store.snapshot(self.path, version).schema}

    def changes(
        self, store: DeltaStore, after: int, upto: int, columns: Sequence[str], summary: RangeSummary | None = None
    ) -> DataFrame:
        """Its changes as a Z-set; `summary` is what `classify` returned for the same range."""
        found = store.changes(self.path, after, upto, self._stored(columns), summary=summary).frame
        return self._shown(found, columns, (naming.WEIGHT,))

    def _stored(self, columns: Sequence[str]) -> list[str]:
        names = list(dict.fromkeys(self.stored.get(c, c) for c in columns))
        return [*names, naming.VISIBLE] if self.hides_rows else names

    def _shown(self, frame: DataFrame, columns: Sequence[str], extra: Sequence[str]) -> DataFrame:
        if self.hides_rows:
            frame = frame.where(f.col(naming.VISIBLE))
        elif frame.columns == [*columns, *extra]:
            return frame
        named = [f.col(quote(self.stored.get(c, c))).alias(c) for c in columns]
        return frame.select(*named, *extra)
