"""The stored rows that go, found on the driver by the values of few columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage.exact_cast import exactly_typed
from millstream.engine.storage.lookup import MAX_FOUND, has_exact_equality
from millstream.engine.storage.places import PLACE_COLUMNS

if TYPE_CHECKING:
    from millstream.engine.storage.store import DeltaStore

# A column in which so many times more stored rows agree than go away tells little: another one may tell more.
_MANY, _FEW, _MAX_TRIES = 10, 1_000, 3


@dataclass(frozen=True)
class Finder:
    """A stored table at one version, to look for rows in."""

    store: DeltaStore
    path: str
    version: int

    def by_key(self, wanted: pa.Table, key: Sequence[str]) -> pa.Table | None:
        """The places of the rows that may have the key of a wanted one; None if Spark has to find them."""
        return self._find(wanted, [n for n in key if _is_exact(wanted, n)], MAX_FOUND)

    def by_any(self, wanted: pa.Table, columns: Sequence[str]) -> pa.Table | None:
        """The places of the rows that agree with a wanted one in one column, which is not always the same.

        None if Spark has to find them.
        """
        for column in telling(wanted, columns)[:_MAX_TRIES]:
            found = self._find(wanted, [column], _MANY * wanted.num_rows + _FEW)
            if found is not None:
                return found
        return None

    def _find(self, wanted: pa.Table, columns: Sequence[str], limit: int) -> pa.Table | None:
        values = {n: pc.unique(wanted[n].combine_chunks()) for n in columns}
        return self.store.find(self.path, self.version, values, limit) if columns else None


def telling(wanted: pa.Table, columns: Sequence[str]) -> list[str]:
    """The columns that can be searched in, those with the most values first."""
    exact = [n for n in columns if _is_exact(wanted, n)]
    return sorted(exact, key=lambda n: -len(pc.unique(wanted[n])))


def _is_exact(rows: pa.Table, column: str) -> bool:
    return has_exact_equality(rows.schema.field(column).type)


def taken_away(going: pa.Table, found: pa.Table, columns: list[str]) -> pa.Table | None:
    """The rows of a bag that go, with their places, if the places found are exactly as many as rows go.

    All rows that go are stored. So where as many stored rows have a value in the searched column as rows with this
    value go, they are the same rows, whatever their other columns hold. `None` where other rows share the value.
    """
    (searched,) = set(found.column_names) - set(PLACE_COLUMNS)
    weights = going[naming.WEIGHT].to_numpy()
    rows = going.take(np.repeat(np.arange(going.num_rows), -weights)).sort_by(searched)
    found = found.sort_by(searched)
    if not rows[searched].combine_chunks().equals(exactly_typed(found[searched].combine_chunks(), rows[searched].type)):
        return None
    result = rows.select(columns)
    for name in PLACE_COLUMNS:
        result = result.append_column(name, found[name])
    return result
