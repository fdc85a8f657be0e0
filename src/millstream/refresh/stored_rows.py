"""Looks up the stored rows that a refresh replaces or removes.

A few columns usually identify them, so they are looked up on the driver; Spark scans the stored table only if that
would take too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from millstream import naming
from millstream.diff.plan import Kind, Layout
from millstream.engine.storage import DeltaStore, Lookup, Rows, selective_columns
from millstream.naming import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.engine.worker import Worker

_WANTED = f"{naming.RESERVED_PREFIX}wanted_"


@dataclass(frozen=True)
class StoredRows:
    """The stored table of a stage, at the version a refresh began with."""

    store: DeltaStore
    path: str
    version: int
    layout: Layout

    @property
    def is_small(self) -> bool:
        """Whether the table is small enough to be read as a whole."""
        return self.store.is_small(self.path, self.version)

    @property
    def num_rows(self) -> int | None:
        """The number of rows, if the log shows it."""
        return self.store.snapshot(self.path, self.version).num_rows

    def all(self) -> DataFrame:
        """All rows with their places."""
        return self.store.read_located(self.path, self.version, [c.name for c in self.layout.columns])

    def look_up(self, wanted: pa.Table) -> pa.Table | None:
        """The places of the rows that may match a wanted row, or None if Spark has to find them."""
        lookup = Lookup(self.store, self.path, self.version)
        if self.layout.kind is not Kind.BAG:
            return lookup.by_key(wanted, self.layout.key)
        return lookup.by_any(wanted, [c.name for c in self.layout.columns])

    def at(self, places: pa.Table) -> DataFrame | None:
        """The rows at the given places, or None if Spark has to find them."""
        return self.store.rows_at(self.path, self.version, places)

    def scan(self, worker: Worker, wanted: Rows) -> DataFrame:
        """The rows that may match a wanted row, found by a full scan."""
        columns = list(self.layout.key)
        if isinstance(wanted, pa.Table):
            if self.layout.kind is Kind.BAG and not columns:
                columns = selective_columns(wanted, [c.name for c in self.layout.columns])[:1]
            wanted = f.broadcast(worker.frame(wanted.select(columns))) if columns else wanted
        if not columns:
            return self.all()
        keys = wanted.select(*(f.col(quote(n)).alias(_WANTED + n) for n in columns)).distinct()
        agrees = [f.col(quote(n)).eqNullSafe(f.col(quote(_WANTED + n))) for n in columns]
        return self.all().join(keys, agrees, "left_semi")
