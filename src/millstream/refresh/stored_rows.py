"""Finding the stored rows that a refresh replaces or takes away.

A few columns usually tell them: they are looked up on the driver, and only where that takes too long does Spark scan
the stored table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from millstream import naming
from millstream.diff.plan import Kind, Layout
from millstream.engine.storage import MAX_FOUND, PLACE_COLUMNS, DeltaStore, Rows, has_exact_equality
from millstream.naming import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.engine.worker import Worker

_WANTED = f"{naming.RESERVED_PREFIX}wanted_"
# A column in which so many times more stored rows agree than go away tells little: another one may tell more.
_MANY, _FEW, _MAX_TRIES = 10, 1_000, 3


@dataclass(frozen=True)
class StoredRows:
    """The stored table of a stage, at the version a refresh began with."""

    store: DeltaStore
    path: str
    version: int
    layout: Layout

    @property
    def is_small(self) -> bool:
        """Whether it is simply read as a whole."""
        return self.store.is_small(self.path, self.version)

    @property
    def num_rows(self) -> int | None:
        """As far as the log tells."""
        return self.store.snapshot(self.path, self.version).num_rows

    def all(self) -> DataFrame:
        """All rows with their places."""
        return self.store.read_located(self.path, self.version, [c.name for c in self.layout.columns])

    def find(self, wanted: pa.Table) -> pa.Table | None:
        """The places of the rows that may agree with a wanted one, or None if Spark has to find them."""
        if self.layout.kind is not Kind.BAG:
            return self._find(wanted, self._telling(wanted), MAX_FOUND)
        for column in self._telling(wanted)[:_MAX_TRIES]:
            found = self._find(wanted, [column], _MANY * wanted.num_rows + _FEW)
            if found is not None:
                return found
        return None

    def _find(self, wanted: pa.Table, columns: Sequence[str], limit: int) -> pa.Table | None:
        values = {n: pc.unique(wanted[n].combine_chunks()) for n in columns}
        return self.store.find(self.path, self.version, values, limit) if columns else None

    def at(self, places: pa.Table) -> DataFrame | None:
        """The rows at some places, or None if Spark has to find them."""
        return self.store.rows_at(self.path, self.version, places)

    def scan(self, worker: Worker, wanted: Rows) -> DataFrame:
        """The rows that may agree with a wanted one, found by a scan of them all."""
        columns = list(self.layout.key)
        if isinstance(wanted, pa.Table):
            columns = columns or self._telling(wanted)[:1]
            wanted = f.broadcast(worker.frame(wanted.select(columns))) if columns else wanted
        if not columns:
            return self.all()
        keys = wanted.select(*(f.col(quote(n)).alias(_WANTED + n) for n in columns)).distinct()
        agrees = [f.col(quote(n)).eqNullSafe(f.col(quote(_WANTED + n))) for n in columns]
        return self.all().join(keys, agrees, "left_semi")

    def _telling(self, wanted: pa.Table) -> list[str]:
        """The columns to search in: those of the key, or any one of a bag's, those with the most values first."""
        is_keyed = self.layout.kind is not Kind.BAG
        names = self.layout.key if is_keyed else [c.name for c in self.layout.columns]
        exact = [n for n in names if has_exact_equality(wanted.schema.field(n).type)]
        return exact if is_keyed else sorted(exact, key=lambda n: -len(pc.unique(wanted[n])))


def taken_away(going: pa.Table, found: pa.Table, columns: list[str]) -> pa.Table | None:
    """The rows of a bag that go, with their places, if the places found are exactly as many as rows go.

    All rows that go are stored. So where as many stored rows have a value in the searched column as rows with this
    value go, they are the same rows, whatever their other columns hold. `None` where other rows share the value.
    """
    (searched,) = set(found.column_names) - set(PLACE_COLUMNS)
    weights = going[naming.WEIGHT].to_numpy()
    rows = going.take(np.repeat(np.arange(going.num_rows), -weights)).sort_by(searched)
    found = found.sort_by(searched)
    if not rows[searched].combine_chunks().equals(found[searched].combine_chunks().cast(rows[searched].type)):
        return None
    result = rows.select(columns)
    for name in PLACE_COLUMNS:
        result = result.append_column(name, found[name])
    return result
